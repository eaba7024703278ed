"""Variants: a second schedule, which the sizes of a run decide for."""
