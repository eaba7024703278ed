"""Writers of GE graphs (`.air`, C++, ONNX, JSON, text), and the toolkit that compiles them."""
