"""Fourier transforms of any length, known or symbolic, as a convolution with a chirp (Bluestein, 1970)."""

from __future__ import annotations

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, ceildiv
from occ.compiler.ir.op import Value
from occ.compiler.ir.ops.attention import reshape

_FIRST = 64  # the factor of all convolutions; the other one follows from the length

Parts = tuple[Value, Value]  # real and imaginary


def by_chirp(b: GraphBuilder, x: Value, n: Dim, *, inverse: bool) -> Value:
    """The transform of `x [.., n, 1 or 2]` along its last axis but one, both sides.

    With `w[k] = exp(pi i k^2 / n)` bin `f` is `conj(w[f]) sum over k of (x[k] conj(w[k])) w[f - k]`: a convolution,
    which is a product between transforms of `64 * m` elements, at least `2 n - 1`. Those take two matrix products each.

    `y = F(n) @ x` --> `y = conj(w) * F^-1(F(x * conj(w)) * F(w))`
    """
    dims, dtype = x.tensor.dims, x.tensor.dtype
    lead, second = dims[:-2], ceildiv(n * 2 - 1, _FIRST)
    length = second * _FIRST
    steps = _TwoSteps(b, second, x)
    chirp = b.fourier_chirp(n=n, length=length, dtype=dtype)
    whole = _split(b, chirp, 0)
    spectrum = steps.of(_flat(b, whole, (length,)))
    end = b.dims(values=(n,), shape=(1,))
    short = b.Slice(chirp, b.constant([0]), end, b.constant([1]))
    w = _flat(b, _split(b, short, 0), (n,))
    conjugate = (w[0], b.Neg(w[1]))
    if dims[-1] == 2:
        real, imaginary = _flat(b, _split(b, x, len(dims) - 1), (*lead, n))
        signal = _times(b, (real, b.Neg(imaginary) if inverse else imaginary), conjugate)
    else:
        flat = reshape(b, x, (*lead, n))
        signal = (b.Mul(flat, conjugate[0]), b.Mul(flat, conjugate[1]))
    margin = b.dims(values=(*(0 for _ in range(2 * len(lead) + 1)), length - n), shape=(2 * (len(lead) + 1),))
    found = _times(b, steps.of((b.Pad(signal[0], margin), b.Pad(signal[1], margin))), spectrum)
    # The inverse transform is the conjugate of the transform of the conjugate, over the length.
    back = steps.of((found[0], b.Neg(found[1])))
    ends = b.constant([len(lead)])
    cut = [b.Slice(p, b.constant([0]), end, ends) for p in back]
    scale = b.Cast(b.dims(values=(length * n if inverse else length,), shape=(1,)), to=dtype)
    real, imaginary = (b.Div(p, scale) for p in _times(b, (cut[0], b.Neg(cut[1])), conjugate))
    made = (real, b.Neg(imaginary) if inverse else imaginary)
    return b.Concat(*(reshape(b, p, (*lead, n, 1)) for p in made), axis=len(lead) + 1)


class _TwoSteps:
    """Transforms of `64 * second` elements: a product over 64 of them, a rotation, a product over the others."""

    def __init__(self, b: GraphBuilder, second: Dim, like: Value) -> None:
        dtype = like.tensor.dtype
        self.b, self.second = b, second
        waves = np.fft.fft(np.eye(_FIRST))
        self.left = b.constant(np.block([[waves.real, waves.imag], [-waves.imag, waves.real]]).astype(dtype.numpy))
        self.right = b.fourier_product(b.fourier_roots(n=second, dtype=dtype), n=second)
        turns = b.fourier_twiddles(first=second, second=_FIRST, dtype=dtype)
        self.turns = _flat(b, _split(b, turns, 0), (second, _FIRST))

    def of(self, x: Parts) -> Parts:
        """The spectrum of a signal `[.., 64 * second]`, element `second * j1 + j2`, bin `k1 + 64 * k2`."""
        b, second, lead = self.b, self.second, x[0].tensor.dims[:-1]
        r = len(lead)
        order = (*range(r), r + 1, r)

        def product(parts: Parts, weights: Value) -> Parts:
            return _split(
                b, b.MatMul(b.Concat(*(b.Transpose(p, perm=order) for p in parts), axis=r + 1), weights), r + 1
            )

        turned = _times(b, product(_flat(b, x, (*lead, _FIRST, second)), self.left), self.turns)
        real, imaginary = (b.Transpose(p, perm=order) for p in product(turned, self.right))
        return _flat(b, (real, imaginary), (*lead, second * _FIRST))


def _split(b: GraphBuilder, x: Value, axis: int) -> Parts:
    real, imaginary = b.Split(x, axis=axis, num_outputs=2, n_results=2)
    return real, imaginary


def _flat(b: GraphBuilder, x: Parts, dims: tuple[Dim, ...]) -> Parts:
    return reshape(b, x[0], dims), reshape(b, x[1], dims)


def _times(b: GraphBuilder, x: Parts, y: Parts) -> Parts:
    return (
        b.Sub(b.Mul(x[0], y[0]), b.Mul(x[1], y[1])),
        b.Add(b.Mul(x[0], y[1]), b.Mul(x[1], y[0])),
    )
