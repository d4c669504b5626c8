"""What is trained, as plain data."""
