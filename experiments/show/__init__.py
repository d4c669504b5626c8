"""Play, and films of agents."""
