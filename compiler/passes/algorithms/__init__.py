"""Another method for the same operator."""
