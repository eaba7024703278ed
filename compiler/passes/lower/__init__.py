"""Passes to stages `scheduled` and `lowered`: te functions, schedules, and a memory plan."""
