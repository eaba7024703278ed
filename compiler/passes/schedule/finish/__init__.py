"""Finishers: rewrites of a scheduled te function."""
