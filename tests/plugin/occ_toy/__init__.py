"""A package that adds to occ: a target that makes plain C, a pass, a rule and an operator."""
