"""Strassen's matrix products."""
