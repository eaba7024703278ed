"""From ONNX's operators to those of GE, a family a file."""
