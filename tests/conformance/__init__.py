"""What every gate and core promises, tested over the tables."""
