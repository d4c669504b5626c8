"""Studies in closed form."""
