"""GE graphs: nodes, formats, prototypes, and what is checked of them."""
