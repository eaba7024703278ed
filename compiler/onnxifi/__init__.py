"""ONNXIFI: the library that programs load (its sources are runtime/onnxifi), and the process in which it compiles."""
