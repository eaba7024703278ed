"""Readers of models: ONNX protobuf and `.occ` text. The only place that reads ONNX files."""
