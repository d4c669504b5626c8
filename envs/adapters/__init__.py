"""Environments of other packages, as agents with memory take them."""
