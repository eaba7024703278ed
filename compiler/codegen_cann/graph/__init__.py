"""GE graphs: nodes, tensor formats, operator prototypes and their validation."""
