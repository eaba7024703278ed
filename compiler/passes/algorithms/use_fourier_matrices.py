"""Fourier transforms of known length as products with constant matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.dtype import F32, F64
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.attention import reshape
from occ.compiler.ir.ops.signal import fourier_matrix
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.algorithms.two_step_fourier import in_two_steps, two_factors
from occ.compiler.passes.base import Context, Pass, finish

_LARGEST = 1 << 22  # elements of a matrix: one-sided frames of 2,048


@dataclass(frozen=True)
class UseFourierMatrices(Pass):
    """Rewrites a DFT as a product with a constant matrix, and an STFT as a convolution.

    The filters of the convolution are windowed waves. They cost more operations than a fast transform, but less time up
    to about a thousand elements. A two-sided DFT of more than a few hundred takes two products (`two_step_fourier`).

    `%y = DFT(%x) : f32[N,257,2]` --> `%p = MatMul(%x, @waves)  %y = Reshape(%p)`
    """

    name: ClassVar[str] = "use-fourier-matrices"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        made = 0
        for op in list(m.walk()):
            form = _FORMS.get(op.name)
            if form is None or op.operands[0] is None or op.operands[0].tensor.dtype not in (F32, F64):
                continue
            result = form(rw, op, op.operands[0])
            if result is not None:
                rw.replace(op, [result])
                made += 1
        rw.hits[self.name] += made
        return finish(rw, ctx, made)


def _number(op: Op, k: int) -> int | None:
    """Operand `k` as a number if it is a constant scalar, else None."""
    value = op.operands[k] if k < len(op.operands) else None
    found = None if value is None else static_elements(value)
    return int(found[0]) if found is not None and len(found) == 1 and isinstance(found[0], int) else None


def _given(op: Op, k: int) -> bool:
    return k < len(op.operands) and op.operands[k] is not None


def _dft(rw: Rewriter, op: Op, x: Value) -> Value | None:
    dims, rank = x.tensor.dims, x.tensor.rank
    axis, length = _number(op, 2), _number(op, 1)
    if (_given(op, 2) and axis is None) or (_given(op, 1) and length is None):
        return None
    k = (-2 if axis is None else axis) % rank
    size, parts, inverse, onesided = dims[k], dims[-1], bool(op.a.inverse), bool(op.a.onesided)
    if not isinstance(size, int) or not isinstance(parts, int):
        return None
    n = length or (2 * (size - 1) if inverse and onesided else size)
    factors = two_factors(n) if size == n and not onesided else None
    if n < 1 or (factors is None and size * parts * 2 * n > _LARGEST):
        return None
    b = rw.builder(op)
    order = [*(i for i in range(rank - 1) if i != k), k, rank - 1]
    back = tuple(order.index(i) for i in range(rank))
    turned = b.Transpose(x, perm=tuple(order)) if order != list(range(rank)) else x
    if factors is not None:
        made = in_two_steps(b, turned, *factors, inverse=inverse)
    else:
        matrix = fourier_matrix(size, parts, n, inverse=inverse, onesided=onesided).astype(x.tensor.dtype.numpy)
        lead, per_bin = turned.tensor.dims[:-2], 1 if inverse and onesided else 2
        made = b.MatMul(reshape(b, turned, (*lead, size * parts)), b.constant(matrix))
        made = reshape(b, made, (*lead, matrix.shape[1] // per_bin, per_bin))
    return made if turned is x else b.Transpose(made, perm=back)


def _stft(rw: Rewriter, op: Op, signal: Value) -> Value | None:
    window = op.operands[2] if _given(op, 2) else None
    step, length, dims = _number(op, 1), _number(op, 3), signal.tensor.dims
    parts = dims[-1] if signal.tensor.rank > 2 else 1
    n = length if length is not None or window is None else window.tensor.dims[0]
    if not step or not isinstance(n, int) or not isinstance(parts, int) or not isinstance(window, Weight | None):
        return None
    if n * parts * 2 * n > _LARGEST:
        return None
    matrix = fourier_matrix(n, parts, n, inverse=False, onesided=bool(op.a.onesided))
    if window is not None:
        matrix = matrix * np.repeat(window.data.astype(np.float64), parts)[:, None]
    filters = matrix.reshape(n, parts, -1).transpose(2, 1, 0).astype(signal.tensor.dtype.numpy)
    b = rw.builder(op)
    plane = reshape(b, signal, (dims[0], 1, dims[1])) if parts == 1 else b.Transpose(signal, perm=(0, 2, 1))
    made = b.Conv(plane, b.constant(np.ascontiguousarray(filters)), kernel_shape=(n,), strides=(step,))
    if made.tensor.dims[2] != op.result.tensor.dims[1]:
        return None
    return reshape(b, b.Transpose(made, perm=(0, 2, 1)), op.result.tensor.dims)


_FORMS = {"DFT": _dft, "STFT": _stft}
