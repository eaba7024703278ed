"""The rule language: patterns, their matcher, and replacements."""
