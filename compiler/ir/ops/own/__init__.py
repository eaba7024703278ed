"""Operators that only this compiler has: what passes put in the place of others."""
