"""Finds what is wrong with a compilation: the pass, the op, the rule, or the smallest model that shows it."""
