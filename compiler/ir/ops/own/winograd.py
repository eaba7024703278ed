"""Convolution by Winograd's minimal filtering, such as F(4x4, 3x3): 36 multiplications for 16 outputs instead of 144.

Tiles of the input have six positions along an axis, so three taps make four outputs, and five make two; along an axis
of one tap nothing is transformed. With tiles of four positions, F(2x2, 3x3), weights are less than half as large.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), with other points: the transforms come from
polynomial interpolation at 0, +-1/sqrt(2), +-sqrt(2) and infinity. The f32 error then stays close to that of direct
convolution; the usual points 0, +-1, +-2 lose four times as much.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod, sqrt
from typing import Any

import numpy as np

from occ.compiler.ir.dim import ceildiv
from occ.compiler.ir.dtype import I16, I32
from occ.compiler.ir.layout import in_panels
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.roles import WINOGRAD
from occ.runtime.dataclass import dataclass

SIZE, SMALL = 6, 4  # sides of the input tile, and numbers of points
_COLUMNS = 2048  # of a product: they stay in cache, and BLAS uses one thread for them (two take eight times as long)


@dataclass(frozen=True)
class Points:
    """The points of the transforms along an axis, then infinity; pairs +-p share half of their work.

    Attributes:
        at: the finite ones.
        step: what transformed weights are multiplied by, so that they are integers, and outputs divided.
        last: what those at infinity are multiplied by less, and outputs multiply them by.
    """

    at: tuple[float, ...]
    step: int = 1
    last: int = 1

    @property
    def size(self) -> int:
        """The side of a tile of the input."""
        return len(self.at) + 1


POINTS = {SIZE: Points((0.0, sqrt(0.5), -sqrt(0.5), sqrt(2.0), -sqrt(2.0))), SMALL: Points((0.0, 1.0, -1.0))}
WHOLE = {SIZE: Points((0, 1, -1, 2, -2), 24, 2), SMALL: Points((0, 1, -1), 2)}  # of integers


def points_of(taps: int, size: int = SIZE) -> int:
    """The positions of a tile of the input along an axis."""
    return 1 if taps == 1 else size


def outputs_of(taps: int, size: int = SIZE) -> int:
    """The outputs of a tile along an axis."""
    return points_of(taps, size) + 1 - taps


def size_of(kernel_shape: Sequence[int], points: int) -> int:
    """The tile side of a transformed weight with this many points."""
    return next(size for size in POINTS if prod(points_of(k, size) for k in kernel_shape) == points)


@cache
def input_rows(points: Points) -> np.ndarray:
    """B^T, f64[6, 6], read-only: row k has the coefficients of the product of (x - p) over the other points."""
    rows = np.zeros((points.size, points.size))
    for k in range(points.size):
        others = [p for j, p in enumerate(points.at) if j != k]
        coefficients = np.poly(others)[::-1]  # lowest power first
        rows[k, : len(coefficients)] = coefficients
    rows.setflags(write=False)
    return rows


def output_rows(taps: int, points: Points) -> np.ndarray:
    """A^T, f64[4, 6] for three taps: powers of the points; infinity only affects the last row."""
    tile = outputs_of(taps, points.size)
    rows = np.zeros((tile, points.size))
    for i in range(tile):
        rows[i, :-1] = [p**i for p in points.at]
    rows[tile - 1, -1] = points.last
    return rows


def weight_rows(taps: int, points: Points) -> np.ndarray:
    """G, f64[6, taps]; f64[1, 1] for one tap."""
    if taps == 1:
        return np.ones((1, 1))
    rows = np.zeros((points.size, taps))
    for k, p in enumerate(points.at):
        others = prod(p - q for j, q in enumerate(points.at) if j != k)
        rows[k] = [points.step * p**j / others for j in range(taps)]
    rows[-1, -1] = points.step / points.last
    return rows


def transformed_weight(w: np.ndarray, size: int = SIZE, *, whole: bool = False) -> np.ndarray:
    """f[O, C, 3, 3] --> f[36, C, O], computed in f64, some input channels at a time; `whole`: of integers."""
    points = (WHOLE if whole else POINTS)[size]  # applied to the taps in one product: [36, 9] @ [9, c*O]
    g = np.kron(*(weight_rows(k, points) for k in w.shape[2:]))
    points, each = g.shape
    filters, channels = w.shape[:2]
    taps = np.ascontiguousarray(w.reshape(filters, channels, each).T)
    made = np.empty((points, channels, filters), w.dtype)
    step = max(_COLUMNS // max(filters, 1), 1)
    for start in range(0, channels, step):
        part = taps[:, start : start + step].astype(np.float64).reshape(each, -1)
        made[:, start : start + step] = (g @ part).reshape(points, -1, filters)
    return made


def whole_weight(w: np.ndarray, size: int) -> np.ndarray:
    """i8[O, C, 3, 3], C even --> i16[36, C/2, 2, O]: a `transformed_weight` in integers."""
    made = transformed_weight(w.astype(np.float64), size, whole=True)
    return np.rint(made).astype(np.int16).reshape(len(made), -1, 2, len(w))


def _sum(coefficients: Sequence[float], values: Sequence[Expr], parity: int) -> Expr:
    """The terms of even or odd index of a linear combination."""
    total: Expr | None = None
    for k, (c, v) in enumerate(zip(coefficients, values, strict=True)):
        if k % 2 != parity or abs(c) < 1e-12:
            continue
        term = v if abs(c - 1) < 1e-12 else v * literal(c, v.dtype)
        total = term if total is None else total + term
    assert total is not None
    return total


def _input_row(k: int, d: Sequence[Expr], points: Points) -> Expr:
    if len(d) == 1:
        return d[0]
    rows = input_rows(points)
    if k in (0, len(d) - 1):
        return _sum(rows[k], d, k % 2)  # the other parity is zero: these polynomials are even or odd
    even, odd = (_sum(rows[k - (k + 1) % 2], d, parity) for parity in (0, 1))
    return even + odd if k % 2 else even - odd


def _output_row(i: int, t: Sequence[Expr], tile: int, points: Points) -> Expr:
    """Output `i` of a tile of `tile`."""
    if len(t) == 1:
        return t[0]
    total: Expr | None = t[0] if i == 0 else None
    for k in range(1, len(t) - 1, 2):
        pair = t[k] - t[k + 1] if i % 2 else t[k] + t[k + 1]
        factor = points.at[k] ** i
        term = pair if factor == 1 else pair * literal(factor, pair.dtype)
        total = term if total is None else total + term
    assert total is not None
    if i < tile - 1:
        return total
    return total + (t[-1] if points.last == 1 else t[-1] * points.last)


def _exact_quotient(x: Expr, divisor: int) -> Expr:
    """`x / divisor` of an i32 that is a multiple of it but for a multiple of 2^32.

    Integers wrap, and odd ones have an inverse: only the quotient times the power of two in `divisor` has to fit i32.
    """
    twos = divisor & -divisor
    inverse = pow(divisor // twos, -1, 1 << 32)
    return (x if inverse == 1 else x * (inverse if inverse < 1 << 31 else inverse - (1 << 32))) // twos


def _choose(which: Expr, options: Sequence[Expr]) -> Expr:
    value = options[-1]
    for k in reversed(range(len(options) - 1)):
        value = where(equal(which, k), options[k], value)
    return value


def _by_tiles(
    t: Builder, x: Tensor, u: Tensor, border: Expr, a: Any, points: Points, product: Callable[..., Expr]
) -> Tensor:
    """The outputs `[N, O, H, W]` of a convolution of stride 1.

    Args:
        t: where its stages go.
        x: the input, `[N, C, H, W]`.
        u: the transformed weight, `[36, .., O]`; its axes between have the channels.
        border: the value of the input around it.
        a: the attributes `kernel_shape` and `pads`.
        points: along each axis with several taps.
        product: a term of a sum, of the transformed input by channel, a point, a filter, and indices of the axes of
            channels, the last one first.
    """
    size, out = points.size, u.shape[-1]
    top, left, bottom, right = a.pads
    n, c, h, w = x.shape
    beyond = [taps - 1 for taps in a.kernel_shape]
    (high, wide), (tall, broad) = (tuple(of(k, size) for k in a.kernel_shape) for of in (points_of, outputs_of))
    rows, columns = h + top + bottom - beyond[0], w + left + right - beyond[1]
    down, across = ceildiv(rows, tall), ceildiv(columns, broad)
    # The border reaches to the end of the last tile, whose outputs past the result are discarded.
    sizes = ((tall * down, beyond[0], h, top), (broad * across, beyond[1], w, left))
    ends = [outputs + more - size - begin for outputs, more, size, begin in sizes]
    padded = t.pad(x, (0, 0, top, left), (0, 0, *ends), border)

    # The tiles of an image are numbered row by row: for any size, they fill tiles of the products.
    tiles = down * across

    def columns_in(i, t_, e, j, k):
        ty, tx = t_ // across, t_ % across
        taps = [padded[i, k, ty * tall + r, tx * broad + j] for r in range(high)]
        return _choose(e, [_input_row(q, taps, points) for q in range(high)])

    half = t.map([n, tiles, high, wide, c], columns_in, role=WINOGRAD["columns"])

    def rows_in(e, g, i, t_, k):
        return _choose(g, [_input_row(q, [half[i, t_, e, j, k] for j in range(wide)], points) for q in range(wide)])

    v = t.map([high, wide, n, tiles, c], rows_in, role=WINOGRAD["input"])

    def term(e, g, i, t_, o, *over):
        return product(lambda k: v[e, g, i, t_, k], e * wide + g, o, *over)

    acc = t.sum([high, wide, n, tiles, out], u.shape[-2:0:-1], term, role=WINOGRAD["sum"])
    m = t.map([high, wide, n, tiles, out], lambda *i: acc[i], role=WINOGRAD["products"])

    def columns_out(i, ty, tx, y, g, o):
        at = ty * across + tx
        parts = [m[e, g, i, at, o] for e in range(high)]
        return _choose(y, [_output_row(q, parts, tall, points) for q in range(tall)])

    z = t.map([n, down, across, tall, wide, out], columns_out, role=WINOGRAD["rows"])

    def rows_out(i, o, y, x_):
        parts = [z[i, y // tall, x_ // broad, y % tall, g, o] for g in range(wide)]
        return _choose(x_ % broad, [_output_row(q, parts, broad, points) for q in range(broad)])

    return t.map([n, out, rows, columns], rows_out, role=WINOGRAD["output"])


@op(
    "winograd", tags=("contraction",), reads="channels", writes="channels", own_attributes="kernel_shape=ints pads=ints"
)
class Winograd:
    """A convolution of stride 1 with one, three or five taps along both axes, with a `transformed_weight`.

    `kernel_shape` and `pads` are as in Conv. Operands of f16 are computed in f32, and their weight has f32.
    """

    def weight(x, u, *_, a, lanes):
        return in_panels(u.shape, 2, (2, 0, 1), lanes, lanes)

    def body(t, x, u, b=None, *, a):
        def product(v, p, o, r):
            return f.in_acc(v(r)) * f.in_acc(u[p, r, o])

        points, acc = POINTS[size_of(a.kernel_shape, u.shape[0])], x.dtype.acc
        wide = x if x.dtype == acc else t.map(x.shape, lambda *i: f.in_acc(x[i]), name="wide")
        y = _by_tiles(t, wide, u, literal(0, acc), a, points, product)
        if b is None:
            return y if acc == x.dtype else t.map(y.shape, lambda *i: cast(x.dtype, y[i]), name="conv_out")
        return t.map(y.shape, lambda *i: cast(x.dtype, y[i] + f.in_acc(b[i[1]])), name="conv_out")


@op(
    "winograd_dot",
    tags=("contraction",),
    reads="channels",
    writes="channels",
    own_attributes="kernel_shape=ints pads=ints zero=int",
)
class WinogradDot:
    """An integer convolution by F(4x4, 3x3) or F(2x2, 3x3), exact: sums of pairs in i16, plus the correction `total`.

    The weight is a `whole_weight`. With tiles of 6x6, codes of 8 bits become 15 bits, weights 16, and results 576 times
    as large; of 4x4 11 bits, 12 bits, and 4 times. Sums may wrap, since only those results have to fit i32, divided by
    9. `zero` is the border value, and `total` has the correction of each filter for it.
    """

    def weight(x, u, *_, a, lanes):
        return in_panels(u.shape, 3, (3, 0, 1, 2), lanes, lanes, ((2, 2),))

    def body(t, x, u, total, *, a):
        wide = t.map(x.shape, lambda *i: cast(I16, x[i]), name="wide")

        def product(v, p, o, q, r):
            return cast(I32, v(r * 2 + q)) * cast(I32, u[p, r, q, o])

        points = WHOLE[size_of(a.kernel_shape, u.shape[0])]
        y = _by_tiles(t, wide, u, literal(a.zero, I16), a, points, product)
        return t.map(y.shape, lambda *i: _exact_quotient(y[i], points.step**2) + total[i[1]], name="sums")


ALL = (Winograd, WinogradDot)
