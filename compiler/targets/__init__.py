"""Targets, their options, and the machine that code is generated for."""
