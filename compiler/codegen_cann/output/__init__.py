"""What GE graphs are written as, and the tools that take them."""
