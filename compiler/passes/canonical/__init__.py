"""Passes to stage `canonical`: simplification to one normal form."""
