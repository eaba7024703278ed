"""ONNXIFI: the library that programs load, and the process in which it compiles.

The sources of the library are in runtime/onnxifi.
"""
