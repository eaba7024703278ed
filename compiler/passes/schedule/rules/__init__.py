"""Schedule rules: one loop structure each."""
