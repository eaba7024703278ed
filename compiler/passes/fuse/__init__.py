"""To stage `fused`: what becomes one kernel."""
