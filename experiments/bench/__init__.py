"""Timings."""
