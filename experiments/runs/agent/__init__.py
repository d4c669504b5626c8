"""Runs of agents in environments."""
