"""Tables of unit roots, for Fourier transforms whose length is known in a run: angles are computed in f64."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from math import pi

from occ.compiler.ir.dtype import F64
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.te.expr import Expr, call, cast, equal, literal, minimum, where, wrap


def _turn(part: Expr, step: Expr, n: Expr, sign: int = -1) -> Expr:
    """The real or imaginary part of `exp(sign 2 pi i step / n)`; a sine is a cosine of a quarter turn before."""
    angle = cast(F64, step) * (2 * pi) / cast(F64, n)
    return call("cos", angle - cast(F64, part) * (sign * pi / 2))


@op("fourier_roots", own_attributes="n=size dtype=dtype")
class FourierRoots:
    """`[2, n]`: real and imaginary parts of `exp(-2 pi i k / n)`."""

    def body(t, *, a):
        return t.map((2, a.n), lambda p, k: cast(a.dtype, _turn(p, k, wrap(a.n))), name="roots")


@op("fourier_product", own_attributes="n=size")
class FourierProduct:
    """The weights of a transform of `n` elements, from its roots: `[2 n, 2 n]`, real parts before imaginary ones."""

    def body(t, roots, *, a):
        n = wrap(a.n)

        def element(row, column):
            turn = ((row % n) * (column % n)) % n
            same = equal(row // n, column // n)
            value = roots[where(same, literal(0, row.dtype), literal(1, row.dtype)), turn]
            return where((row >= n) & (column < n), -value, value)

        return t.map((a.n * 2, a.n * 2), element, name="product")


@op("fourier_twiddles", own_attributes="first=size second=size dtype=dtype")
class FourierTwiddles:
    """`[2, first, second]`: the parts of `exp(-2 pi i k j / (first * second))`."""

    def body(t, *, a):
        whole = wrap(a.first * a.second)
        return t.map((2, a.first, a.second), lambda p, k, j: cast(a.dtype, _turn(p, k * j, whole)), name="twiddles")


@op("fourier_chirp", own_attributes="n=size length=size dtype=dtype")
class FourierChirp:
    """`[2, length]`: the parts of `exp(pi i k^2 / n)` for `|k| < n`, negative ones at the end, and zeros between."""

    def body(t, *, a):
        n, length = wrap(a.n), wrap(a.length)

        def element(part, place):
            k = minimum(place, length - place)
            return cast(a.dtype, where(k < n, _turn(part, (k * k) % (n * 2), n * 2, 1), literal(0, F64)))

        return t.map((2, a.length), element, name="chirp")


ALL: tuple[OpSpec, ...] = (FourierRoots, FourierProduct, FourierTwiddles, FourierChirp)
