"""Images of environments for people, and a window."""
