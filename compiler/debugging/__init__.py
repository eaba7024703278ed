"""Debugging tools: bisection of passes, reduction of models, translation validation, checks of rewrite rules."""
