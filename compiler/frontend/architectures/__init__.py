"""Graphs of language models that come as weights without a graph: GGUF files and folders of safetensors.

A reader gives a description of a decoder (`description.py`) and its weights by name (`stored.py`); `decoder_graph.py` makes
the ONNX model from both, in memory and in the form of onnxruntime-genai's builder.
"""
