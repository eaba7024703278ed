"""Variants: a second schedule, chosen at run time by a condition on sizes."""
