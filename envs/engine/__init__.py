"""The pure batched engine: states, counter-based random numbers, phases, grids, views."""
