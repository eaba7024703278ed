"""The operators that onnxruntime adds to ONNX's."""
