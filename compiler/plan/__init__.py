"""The plan and the manifest of a compiled model."""
