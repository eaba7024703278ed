"""Schedules of te functions: the facts, helpers and rules that choose them."""
