"""Fourier transforms of known length as products with constant matrices."""

from __future__ import annotations

from math import gcd
from typing import ClassVar

import numpy as np

from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, Sym, floordiv
from occ.compiler.ir.dtype import F32, F64
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.attention import reshape
from occ.compiler.ir.ops.signal import fourier_matrix
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.algorithms.chirp_transform import by_chirp
from occ.compiler.passes.algorithms.two_step_fourier import in_two_steps, two_factors
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

_LARGEST = 1 << 22  # elements of a matrix
_PIECES = 64  # of a frame: each is copied by its own step


@dataclass(frozen=True)
class UseFourierMatrices(Pass):
    """Rewrites a DFT as a product with a constant matrix, and an STFT as a convolution.

    The filters of the convolution are windowed waves. They cost more operations than a fast transform, but less time up
    to about a thousand elements. A two-sided DFT of more than a few hundred takes two products (`two_step_fourier`),
    and one of any other length a convolution (`chirp_transform`); so do longer frames, which are copied before.

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


def _size(op: Op, k: int) -> Dim | None:
    """Operand `k` as a size that is known or follows from sizes of inputs, else None."""
    value = op.operands[k] if k < len(op.operands) else None
    found = None if value is None else static_elements(value)
    return found[0] if found is not None and len(found) == 1 and isinstance(found[0], (int, Sym)) else None


def _given(op: Op, k: int) -> bool:
    return k < len(op.operands) and op.operands[k] is not None


def _dft(rw: Rewriter, op: Op, x: Value) -> Value | None:
    dims, rank = x.tensor.dims, x.tensor.rank
    axis, length = _number(op, 2), _size(op, 1)
    if (_given(op, 2) and axis is None) or (_given(op, 1) and length is None):
        return None
    k = (-2 if axis is None else axis) % rank
    size, parts, inverse, onesided = dims[k], dims[-1], bool(op.a.inverse), bool(op.a.onesided)
    to_real = inverse and onesided
    n = length if length is not None else 2 * (size - 1) if to_real else size
    if not isinstance(parts, int) or (isinstance(n, int) and n < 1):
        return None
    factors = two_factors(n) if isinstance(n, int) and not to_real else None
    halves = factors is not None and size == n and not onesided
    one_matrix = isinstance(size, int) and isinstance(n, int) and size * parts * 2 * n <= _LARGEST and not halves
    if to_real and not one_matrix:
        return None
    b = rw.builder(op)
    order = [*(i for i in range(rank - 1) if i != k), k, rank - 1]
    back = tuple(order.index(i) for i in range(rank))
    turned = b.Transpose(x, perm=tuple(order)) if order != list(range(rank)) else x
    if one_matrix:
        assert isinstance(size, int), "a matrix has known extents"
        assert isinstance(n, int), "a matrix has known extents"
        matrix = fourier_matrix(size, parts, n, inverse=inverse, onesided=onesided).astype(x.tensor.dtype.numpy)
        lead, per_bin = turned.tensor.dims[:-2], 1 if to_real else 2
        made = b.MatMul(reshape(b, turned, (*lead, size * parts)), b.constant(matrix))
        made = reshape(b, made, (*lead, matrix.shape[1] // per_bin, per_bin))
    else:
        made = _transform(b, _of_length(b, turned, n), n, factors, inverse=inverse, onesided=onesided)
    return made if turned is x else b.Transpose(made, perm=back)


def _transform(
    b: GraphBuilder, x: Value, n: Dim, factors: tuple[int, int] | None, *, inverse: bool, onesided: bool
) -> Value:
    """The transform of `x [.., n, 1 or 2]` along its last axis but one, by no matrix of all elements."""
    made = in_two_steps(b, x, *factors, inverse=inverse) if factors else by_chirp(b, x, n, inverse=inverse)
    return _cut(b, made, x.tensor.rank - 2, 0, floordiv(n, 2) + 1) if onesided else made


def _cut(b: GraphBuilder, x: Value, axis: int, start: int, count: Dim, step: int = 1) -> Value:
    """`count` elements along an axis, each `step` after the one before."""
    end = b.dims(values=((count - 1) * step + start + 1,), shape=(1,))
    return b.Slice(x, b.constant([start]), end, b.constant([axis]), b.constant([step]))


def _long_frames(b: GraphBuilder, op: Op, signal: Value, step: int, n: int, window: Weight | None) -> Value | None:
    """Frames laid out in memory, then transformed: piece by piece, of which frames and steps are multiples."""
    piece = gcd(step, n)
    if n // piece > _PIECES:
        return None
    parts = int(signal.tensor.dims[2]) if signal.tensor.rank > 2 else 1  # pyright: ignore[reportArgumentType]
    batch, frames = signal.tensor.dims[0], op.result.tensor.dims[1]
    count = (frames - 1) * (step // piece) + n // piece
    pieces = reshape(b, _cut(b, signal, 1, 0, count * piece), (batch, count, piece * parts))
    made = b.Concat(*(_cut(b, pieces, 1, k, frames, step // piece) for k in range(n // piece)), axis=2)
    made = reshape(b, made, (batch, frames, n, parts))
    if window is not None:
        made = b.Mul(made, b.constant(window.data.reshape(n, 1).astype(made.tensor.dtype.numpy)))
    return _transform(b, made, n, two_factors(n), inverse=False, onesided=bool(op.a.onesided))


def _of_length(b: GraphBuilder, x: Value, n: Dim) -> Value:
    """`x` with `n` elements along its last axis but one, filled up with zeros or cut."""
    more = n - x.tensor.dims[-2]
    if more == 0:
        return x
    return b.Pad(x, b.dims(values=(*(0 for _ in range(2 * x.tensor.rank - 2)), more, 0), shape=(2 * x.tensor.rank,)))


def _stft(rw: Rewriter, op: Op, signal: Value) -> Value | None:
    window = op.operands[2] if _given(op, 2) else None
    step, length, dims = _number(op, 1), _number(op, 3), signal.tensor.dims
    parts = dims[-1] if signal.tensor.rank > 2 else 1
    n = length if length is not None or window is None else window.tensor.dims[0]
    if not step or not isinstance(n, int) or not isinstance(parts, int) or not isinstance(window, Weight | None):
        return None
    if n * parts * 2 * n > _LARGEST:
        return _long_frames(rw.builder(op), op, signal, step, n, window)
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
