"""What an operator is: its signature, attributes, shape function and te body. The operators themselves are in `ir/ops`."""
