"""Quantisation of ONNX models: `occ quantize` and `occ.quantize`.

The codes are computed by `onnxruntime.quantization`, an optional dependency (`pip install 'occ-compiler[quantize]'`).
Among maintained libraries it is the one whose results remain ONNX models of standard operators and of
`com.microsoft.MatMulNBits`, which occ and every other runtime read; it supports all four forms (static, dynamic, and
weights of 8 and of 4 bits); and many users have it already. nncf's backend for ONNX is built on OpenVINO, and Intel's
neural-compressor and Olive call this library for the same steps.
"""
