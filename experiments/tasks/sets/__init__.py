"""The tasks on data sets and programs."""
