"""Fourier transforms as GE matrix products with constant matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.linear import matmul
from occ.compiler.codegen_cann.mapping.shape import gathered
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops.signal import fourier_matrix

Row = Callable[..., Any]
_LARGEST = 1 << 24  # elements of a matrix


def _matrix(length: int, parts: int, n: int, *, inverse: bool, onesided: bool) -> np.ndarray:
    if (length * parts) * 2 * n > _LARGEST:
        raise Unsupported(f"the matrix of a transform of {n} would have more than {_LARGEST} elements")
    return fourier_matrix(length, parts, n, inverse=inverse, onesided=onesided)


def _transformed(e: Emitter, x: Ref, matrix: np.ndarray) -> Ref:
    """The last two axes, elements and their parts, merged and multiplied by a matrix."""
    flat = e.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    like = {"FLOAT16": np.float16, "FLOAT": np.float32, "DOUBLE": np.float64}.get(x.dtype)
    if like is None:
        raise Unsupported(f"it is not computed in {x.dtype}")
    return matmul(e, flat, e.constant(matrix, dtype=like))


def _dft(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    length, given = e.known(op, 1), e.known(op, 2)
    rank, parts = len(x.shape), x.shape[-1]
    axis = int(given.reshape(-1)[0]) % rank if given is not None else rank - 2
    inverse, onesided = bool(op.a.inverse), bool(op.a.onesided)
    size = x.shape[axis]
    n = int(length.reshape(-1)[0]) if length is not None else 2 * (size - 1) if inverse and onesided else size
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    turned = e.transpose(x, order)
    made = _transformed(e, turned, _matrix(size, parts, n, inverse=inverse, onesided=onesided))
    given_parts = 1 if inverse and onesided else 2
    made = e.reshape(made, (*turned.shape[:-2], made.shape[-1] // given_parts, given_parts))
    return e.transpose(made, [order.index(k) for k in range(rank)])


def _stft(e: Emitter, op: Op, signal: Ref, *_: Any) -> Ref:
    step, window, length = (e.known(op, k) for k in (1, 2, 3))
    assert step is not None, "STFT has a step"
    n = int(length.reshape(-1)[0]) if length is not None else 0 if window is None else len(window)
    if len(signal.shape) == 2:  # as in onnxruntime
        signal = e.reshape(signal, (*signal.shape, 1))
    frames, parts = e.type(op.result).shape[1], signal.shape[-1]
    at = np.arange(frames)[:, None] * int(step.reshape(-1)[0]) + np.arange(n)
    cut = e.reshape(gathered(e, signal, at.reshape(-1), 1), (signal.shape[0], frames, n, parts))
    matrix = _matrix(n, parts, n, inverse=False, onesided=bool(op.a.onesided))
    if window is not None:
        matrix = matrix * np.repeat(window.astype(np.float64), parts)[:, None]
    return e.reshape(_transformed(e, cut, matrix), e.type(op.result).shape)


ROWS: dict[str, Row] = {"DFT": _dft, "STFT": _stft}
