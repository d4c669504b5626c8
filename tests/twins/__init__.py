"""Slow NumPy twins of the cores, written from the equations alone."""
