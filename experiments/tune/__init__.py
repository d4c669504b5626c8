"""`rlgates tune`: hyperparameter searches with Optuna."""
