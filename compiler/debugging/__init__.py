"""Tools that find what is wrong with a compilation: a pass, an op, a rule."""
