"""Methods: alternative algorithms for an operator, each with its rewrite and its schedule."""
