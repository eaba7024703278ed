"""Fourier transforms of composite length as two small matrix products (Cooley and Tukey, 1965)."""

from __future__ import annotations

from math import isqrt

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.op import Value
from occ.compiler.ir.ops.attention import reshape
from occ.compiler.ir.ops.signal import fourier_matrix

_SHORTEST = 128  # elements: below this, one product is faster
_LARGEST = 1024  # factor: its matrix has 4 * 1024**2 elements


def two_factors(n: int) -> tuple[int, int] | None:
    """The two factors of `n` closest to each other, if they save most of the work; else None."""
    if n < _SHORTEST:
        return None
    small = next(a for a in range(isqrt(n), 0, -1) if n % a == 0)
    large = n // small
    return (small, large) if small >= 4 and large <= min(_LARGEST, n // 4) else None


def in_two_steps(b: GraphBuilder, x: Value, first: int, second: int, *, inverse: bool) -> Value:
    """The transform of `x [.., first * second, 1 or 2]` along its last axis but one, both sides.

    Element `j = second * j1 + j2` adds to bin `k = k1 + first * k2` as
    `W(first)**(j1 k1) * W(n)**(j2 k1) * W(second)**(j2 k2)`: a product over `j1`, a rotation, and a product over `j2`.
    Real and imaginary parts are separate in between, so that every step runs along rows.

    `y = F(n) @ x`
    --> `s[k1, p, j2] = F(first) @ x[j1, j2]  t = s * W(n)**(j2 k1)  y[k2, k1, p] = t[k1, (p, j2)] @ F(second)`
    """
    dims, dtype = x.tensor.dims, x.tensor.dtype.numpy
    lead, parts, n = dims[:-2], int(dims[-1]), first * second  # pyright: ignore[reportArgumentType]
    r = len(lead)
    planes = reshape(b, x, (*lead, first, second, parts))
    if parts == 2:  # the parts of an element become rows, one below the other
        planes = b.Transpose(planes, perm=(*range(r), r, r + 2, r + 1))
    left = fourier_matrix(first, parts, first, inverse=inverse, onesided=False).T
    made = b.MatMul(b.constant(left.astype(dtype)), reshape(b, planes, (*lead, first * parts, second)))
    real, imaginary = b.Split(reshape(b, made, (*lead, first, 2, second)), axis=r + 1, num_outputs=2, n_results=2)
    angle = np.arange(first)[:, None, None] * np.arange(second) * (2 * np.pi / n * (1 if inverse else -1))
    cosine, sine = (b.constant(f(angle).astype(dtype)) for f in (np.cos, np.sin))
    turned = b.Concat(
        b.Sub(b.Mul(real, cosine), b.Mul(imaginary, sine)),
        b.Add(b.Mul(real, sine), b.Mul(imaginary, cosine)),
        axis=r + 1,
    )
    right = fourier_matrix(second, 2, second, inverse=inverse, onesided=False)
    right = right.reshape(second, 2, -1).transpose(1, 0, 2).reshape(2 * second, -1)  # rows part by part
    made = b.MatMul(reshape(b, turned, (*lead, first, 2 * second)), b.constant(right.astype(dtype)))
    bins = b.Transpose(reshape(b, made, (*lead, first, second, 2)), perm=(*range(r), r + 1, r, r + 2))
    return reshape(b, bins, (*lead, n, 2))
