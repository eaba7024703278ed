"""Finishers: rewrite what is scheduled."""
