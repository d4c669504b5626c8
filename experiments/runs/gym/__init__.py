"""Runs of agents in environments of gymnasium."""
