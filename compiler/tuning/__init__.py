"""Measures schedules and precisions, on this machine or on workers, and fills caches before they are needed."""
