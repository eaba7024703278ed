"""The operators, each defined once in the module of its family: those in its `ALL`."""
