"""The compiler: ONNX in, an artifact out. Import it as `occ.compiler`."""

if __name__ != "occ.compiler":
    raise ImportError(f"import this package as `occ.compiler`, not `{__name__}`")
