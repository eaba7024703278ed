"""Graphs of language models that are distributed as weights only: GGUF files and folders of safetensors.

A reader returns a description of a decoder (`description.py`) and its weights by name (`stored_weights.py`);
`decoder_graph.py` builds the ONNX model from both, in memory and in the form of onnxruntime-genai's builder.
"""
