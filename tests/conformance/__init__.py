"""Conformance: the contracts of gates, cores and environments."""
