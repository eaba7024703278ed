"""Ascend NPUs: GE graph IR for CANN. Not built yet; its targets are registered and say so (OCC0304)."""
