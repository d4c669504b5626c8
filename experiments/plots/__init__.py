"""Plots that several figures use."""
