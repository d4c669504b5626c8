"""One run: its folder, its files, its result."""
