"""Maps ONNX operators to GE operators, one operator family per file."""
