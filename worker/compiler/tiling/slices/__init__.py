"""What one slice of a result needs of everything before it."""
