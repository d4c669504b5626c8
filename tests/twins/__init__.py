"""Slow NumPy twins of cores and games, written only from the published equations and rules."""
