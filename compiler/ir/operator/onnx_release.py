"""Which releases of the package `onnx` the schemas of operators can be read from: what pyproject.toml asks for."""

from __future__ import annotations

from functools import cache

import onnx

from occ.compiler.diagnostics import error

LEAST = (1, 17)
# By release: why its schemas cannot be used.
FAULTY = {(1, 20): "the types that an operator accepts cannot be read in Python"}


@cache
def check_release() -> None:
    """Refuse a release that pip would not have installed beside occ.

    Raises:
        CompileError: OCC0409.
    """
    major, minor = (int(n) for n in onnx.__version__.split(".")[:2])
    why = FAULTY.get((major, minor)) or ("it is too old" if (major, minor) < LEAST else "")
    if why:
        wanted = ",".join([f">={LEAST[0]}.{LEAST[1]}", *(f"!={a}.{b}.*" for a, b in FAULTY)])
        raise error("OCC0409", f"onnx {onnx.__version__} cannot be used: {why}", help=f"pip install -U 'onnx{wanted}'")
