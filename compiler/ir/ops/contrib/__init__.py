"""Contrib operators of onnxruntime (com.microsoft)."""
