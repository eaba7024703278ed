"""To stage `canonical`: one form of everything, and nothing that need not be there."""
