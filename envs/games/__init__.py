"""The games, one file each: its map, its rules, its settings."""
