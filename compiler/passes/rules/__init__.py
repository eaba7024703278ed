"""The rule language: patterns, their matcher, and what takes the place of what they find."""
