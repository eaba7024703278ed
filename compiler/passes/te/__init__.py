"""Rewrites of te functions."""
