"""Tuning: measures schedules and precisions, here or on workers, and fills caches."""
