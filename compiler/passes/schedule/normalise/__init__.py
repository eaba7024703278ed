"""Normalisers: rewrites of a te function to a form that schedule rules match."""
