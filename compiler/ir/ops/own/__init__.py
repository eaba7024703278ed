"""Internal operators, which passes use to replace ONNX operators."""
