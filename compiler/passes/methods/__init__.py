"""Methods: another computation of the same operator, each with its rewrite and its schedule."""
