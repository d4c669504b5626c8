"""Runs of networks on supervised tasks."""
