"""Internal operators, which passes put in place of ONNX operators."""
