"""To stage `inferred`: types and shapes."""
