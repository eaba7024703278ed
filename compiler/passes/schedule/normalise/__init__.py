"""Normalisers: rewrite a te function into a form that schedule rules look for."""
