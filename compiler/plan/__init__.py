"""What is stored of a compiled model: its plan and its manifest."""
