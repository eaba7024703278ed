"""Internal ops on quantised integers: products, also of bf16."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from functools import reduce
from operator import add, and_

import numpy as np

from occ.compiler.ir.dim import ceildiv
from occ.compiler.ir.dtype import BF16, F32, I8, I16, I32, U8, DType
from occ.compiler.ir.layout import Layout, in_panels
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.window import window_of
from occ.compiler.ir.te.expr import Expr, cast, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.roles import CONV, FOURS, PANELS


def _bytes(t: Builder, x: Tensor, *, signed: bool) -> Tensor:
    """The codes as bytes of the processor's products: u8 plus 128 for signed ones, or i8; bf16 unchanged."""
    dtype, moved = I8 if signed else U8, byte_shift(x.dtype, signed=signed)
    return t.map(x.shape, lambda *i: cast(dtype, cast(I32, x[i]) + moved), name="shifted") if moved else x


def byte_shift(dtype: DType, *, signed: bool) -> int:
    """What is added to codes, to make them operands of products of unsigned by signed bytes, or of signed ones."""
    return {(I8, False): 128, (U8, True): -128}.get((dtype, signed), 0)


def _wide(t: Builder, x: Tensor, some: int) -> Tensor:
    """Codes in pairs per lane are widened to 16 bits, for processors without VNNI.

    In fours they are unchanged.
    """
    return x if x.dtype == BF16 or some == 4 else t.map(x.shape, lambda *i: cast(I16, x[i]), name="wide")


def _fours(t: Builder, x: Tensor, some: int) -> Tensor:
    """Channels `some` at a time, innermost: `[N, C, k...]` --> `[N, C/some, k..., some]`."""
    batch, channels, *around = x.shape
    shape = (batch, ceildiv(channels, some), *around, some)
    return t.map(shape, lambda n, c, *i: x[(n, c * some + i[-1], *i[:-1])], role=FOURS)


def pairs_fit(w: np.ndarray) -> bool:
    """Whether products of any unsigned bytes by pairs of signed bytes, `[.., 2]`, sum within i16."""
    wide = w.astype(np.int32)
    most, least = np.maximum(wide, 0).sum(-1), np.minimum(wide, 0).sum(-1)
    return w.size == 0 or (int(most.max()) * 255 < 1 << 15 and int(least.min()) * 255 >= -(1 << 15))


def _product(acc_type: DType, x: Expr, w: Expr, *, narrow: bool) -> Expr:
    """A product of codes, made in the type of its sum, or in i16 if `narrow` (`pairs_fit`)."""
    if narrow:
        return cast(acc_type, cast(I16, x) * cast(I16, w))
    return cast(acc_type, x) * cast(acc_type, w)


def _point(zero: Tensor) -> Expr:
    """A tensor's zero point as i32."""
    return cast(I32, zero[(0,) * zero.rank])


def _sums_in(w: Tensor) -> DType:
    """The type in which products of a weight are summed."""
    return F32 if w.dtype == BF16 else I32


@op(
    "conv_dot",
    tags=("contraction",),
    reads="channels",
    writes="channels",
    own_attributes="auto_pad=text dilations=ints kernel_shape=ints pads=ints strides=ints group=int zero=int signed=int? narrow=int? planes=int? crossed=int?",
)
class ConvDot:
    """An integer convolution with i32 sums, plus the correction `total` of each filter for zero points.

    The weight of a convolution with one group is `[O, C/4, 4, k...]`, in fours that one instruction multiplies, or in
    pairs for processors that multiply 16-bit integers, to which codes are widened; with more groups it is `[O, C/group,
    k...]`. `kernel_shape` is given, and `zero` is the border value. For bf16 the weight is `[O, C/2, 2, k...]`, the
    sums are f32, and there is no `total`.

    If the zero point of `x` is known only at run time, it is an operand, and `total` has the sums of the filters. With
    `signed`, codes of `x` become signed bytes, not unsigned ones, and `zero` is in terms of those. With `narrow`, pairs
    of products sum within i16 (`pairs_fit`), as `vpmaddubsw` adds them.

    With `crossed`, 2 or `C/2`, the weight is `i16[O, C/4, 2, 2, k...]`, of channels `c` and `c + crossed` for two `c`
    at a time, whose codes are added to the weights of each other: `(x0 + w1) * (x1 + w0)` is `x0 * w0 + x1 * w1` plus
    `x0 * x1` (`crossed_sums`) and `w0 * w1`, two products for one multiplication.
    """

    def weight(x, w, *_, a, lanes):
        if a.group != 1:
            return Layout((*range(1, w.rank), 0))
        if getattr(a, "crossed", 0):
            return in_panels(w.shape, 0, (0, *range(4, w.rank), 1, 2, 3), lanes, 1, ((3, 2),))
        return in_panels(w.shape, 0, (0, *range(3, w.rank), 1, 2), lanes, 1, ((2, w.shape[2]),))

    def body(t, x, w, total=None, zero=None, *, a):
        grouped = a.group == 1
        taps = tuple(a.kernel_shape)
        signed = bool(getattr(a, "signed", 0))
        moved = None if zero is None else _point(zero) + byte_shift(x.dtype, signed=signed)
        planes, apart = bool(getattr(a, "planes", 0)), getattr(a, "crossed", 0)
        stride = 4 if apart == 2 else 2  # of two channels
        some = w.shape[-1 if planes else 2] if grouped else 1
        x, acc_type = _bytes(t, x, signed=signed), _sums_in(w)
        x = _wide(t, x, some) if grouped else x
        win = window_of("conv_dot", x.shape[2:], taps, a)
        missing = some * w.shape[1] - x.shape[1] if grouped and not apart else 0
        border = literal(a.zero, x.dtype) if moved is None else cast(x.dtype, moved)
        padded = t.pad(x, (0, 0, *win.before), (0, missing, *win.after), border)
        n, each = len(taps), w.shape[0] // a.group
        fours = _fours(t, padded, some) if planes else padded

        def product(*i):
            batch, o, pos = i[0], i[1], i[2 : 2 + n]
            if grouped:
                q, c, tap = i[2 + n], i[3 + n], i[4 + n :]
                channel, filter_ = c * some + q, w[(o, c, *tap, q) if planes else (o, c, q, *tap)]
                if planes:
                    code = fours[(batch, c, *win.position(pos, tap), q)]
                    return _product(acc_type, code, filter_, narrow=bool(getattr(a, "narrow", 0)))
            else:
                c, tap = i[2 + n], i[3 + n :]
                channel, filter_ = o // each * w.shape[1] + c, w[(o, c, *tap)]
            code = padded[(batch, channel, *win.position(pos, tap))]
            return _product(acc_type, code, filter_, narrow=bool(getattr(a, "narrow", 0)))

        def cross(*i):
            batch, o, pos, q, c, tap = i[0], i[1], i[2 : 2 + n], i[2 + n], i[3 + n], i[4 + n :]
            first, second = (
                padded[(batch, c * stride + k * apart + q, *win.position(pos, tap))] + w[(o, c, k, q, *tap)]
                for k in (0, 1)
            )
            return cast(I32, first) * cast(I32, second)

        over = (some, w.shape[1], *taps) if grouped else (w.shape[1], *taps)
        acc = t.sum((x.shape[0], w.shape[0], *win.out), over, cross if apart else product, role=CONV)
        if total is None:
            return acc
        change = (lambda o: total[o]) if moved is None else (lambda o: -moved * total[o])
        return t.map(acc.shape, lambda *i: acc[i] + change(i[1]), name="sums")


@op("crossed_sums", reads="channels", own_attributes="apart=int")
class CrossedSums:
    """Minus the sum of products of channels 2 or `C/2` apart: `u8[N, C, ..]` --> `i32[N, 1, ..]`."""

    def body(t, x, *, a):
        some = 2 if a.apart == 2 else 1  # products of a term

        def element(*i):
            n, _, *at, c = i
            x0, x1 = ([cast(I32, x[(n, c * some * some + k + q, *at)]) for q in range(some)] for k in (0, a.apart))
            return reduce(add, (p * q for p, q in zip(x0, x1, strict=True)))

        acc = t.sum((x.shape[0], 1, *x.shape[2:]), (x.shape[1] // (2 * some),), element, name="crossed")
        return t.map(acc.shape, lambda *i: -acc[i], name="less_crossed")


@op("window_sums", own_attributes="auto_pad=text dilations=ints kernel_shape=ints pads=ints strides=ints")
class WindowSums:
    """The sum of each window of a convolution over `x : i32[N, 1, ..]`, with a border of 0.

    `x` has the sums of all channels.
    """

    def body(t, x, *, a):
        win = window_of("window_sums", x.shape[2:], tuple(a.kernel_shape), a)
        padded = t.pad(x, (0, 0, *win.before), (0, 0, *win.after), literal(0, x.dtype))
        n = len(win.kernel)

        def element(*i):
            return padded[(i[0], i[1], *win.position(i[2 : 2 + n], i[2 + n :]))]

        return t.sum((*x.shape[:2], *win.out), win.kernel, element, name="around")


@op("less_points", own_attributes="")
class LessPoints:
    """Subtracts the zero-point correction of a weight from i32 sums: `acc - sums * points`."""

    def body(t, acc, sums, points, *, a):
        return t.map(acc.shape, lambda *i: acc[i] - sums.at(i) * points.at(i), name="centred")


@op("matmul_dot", tags=("contraction",), reads="last", writes="last", own_attributes="signed=int? narrow=int?")
class MatmulDot:
    """An integer product `(x - zero) @ w` with i32 sums.

    The weight is `[K/4, 4, N]`, or in pairs `[K/2, 2, N]`; `total` has the sums of its columns. With `signed`, codes of
    `x` become signed bytes, not unsigned ones. With `narrow`, pairs of products sum within i16 (`pairs_fit`).

    For bf16 the weight is `[K/2, 2, N]`, the sums are f32, and there are neither `total` nor `zero`.
    """

    def weight(x, w, *_, a, lanes):
        return in_panels(w.shape, 2, (2, 0, 1), lanes, 1, ((1, w.shape[1]),))

    def body(t, x, w, total=None, zero=None, *, a):
        signed = bool(getattr(a, "signed", 0))
        shift = byte_shift(x.dtype, signed=signed)
        acc_type, some = _sums_in(w), w.shape[1]
        x = _wide(t, _bytes(t, x, signed=signed), some)
        k = some * w.shape[0]
        padded = t.pad(x, (0,) * x.rank, (*(0,) * (x.rank - 1), k - x.shape[-1]), literal(0, x.dtype))

        def product(*i):
            *row, n, q, r = i
            return _product(acc_type, padded[(*row, r * some + q)], w[r, q, n], narrow=bool(getattr(a, "narrow", 0)))

        acc = t.sum((*x.shape[:-1], w.shape[2]), (some, w.shape[0]), product, name="matmul")
        if total is None:
            return acc

        def element(*i):
            moved = literal(shift, I32)
            if zero is not None:
                moved = _point(zero) + moved
            return acc[i] - moved * total[i[-1]]

        return t.map(acc.shape, element, name="sums")


def _in_panels(t: Builder, y: Tensor, panel: int, some: int) -> Tensor:
    """`[.., K, N]` as signed bytes, `[.., N/panel, K/4, panel, 4]`, zero-padded; or pairs of 16 bits."""
    *batch, depth, columns = y.shape
    dtype = I8 if some == 4 else I16

    def packed(*i):
        *at, p, r, n, q = i
        row, column = r * some + q, p * panel + n
        code = y[(*at, row, column)]
        code = cast(dtype, code if y.dtype == I8 else cast(I32, code) - 128)
        tests = [k < wrap(n) for k, n, width in ((row, depth, some), (column, columns, panel)) if n % width != 0]
        return where(reduce(and_, tests), code, literal(0, dtype)) if tests else code

    return t.map((*batch, ceildiv(columns, panel), ceildiv(depth, some), panel, some), packed, role=PANELS)


@op(
    "activations_dot",
    tags=("contraction",),
    writes="last",
    own_attributes="left=int right=int panel=int some=int signed=int?",
)
class ActivationsDot:
    """An integer product `(x - x_zero) @ (y - y_zero)` of two activations, with i32 sums.

    `x : [.., M, K]` and `y : [.., K, N]` have equal leading axes.

    `y`, once known, is packed in panels of `panel` columns, signed, `some` per lane: four, or two of 16 bits. Zero
    points are operands, or `left` and `right`. With `signed`, `x` is signed too.
    """

    operands = ("x", "y", "x_zero", "y_zero")

    def body(t, x, y, x_zero=None, y_zero=None, *, a):
        *batch, depth, columns = y.shape
        signed = bool(getattr(a, "signed", 0))
        left, right = a.left + byte_shift(x.dtype, signed=signed), a.right - (128 if y.dtype == U8 else 0)
        some = a.some
        plain, steps = x, ceildiv(depth, some)
        x = _wide(t, _bytes(t, x, signed=signed), some)
        x = t.pad(x, (0,) * x.rank, (*(0,) * (x.rank - 1), some * steps - depth), literal(0, x.dtype))
        panels = _in_panels(t, y, a.panel, some)

        def product(*i):
            *at, m, n, q, r = i
            w = panels[(*at, n // a.panel, r, n % a.panel, q)]
            return cast(I32, x[(*at, m, r * some + q)]) * cast(I32, w)

        made = t.sum((*plain.shape[:-1], columns), (some, steps), product, name="matmul")
        if x_zero is not None or left:
            below = t.sum((*batch, columns), (depth,), lambda *i: cast(I32, y[(*i[:-2], i[-1], i[-2])]), name="below")
            point = literal(left, I32) if x_zero is None else _point(x_zero) + left
            high = (128 if y.dtype == U8 else 0) * cast(I32, wrap(depth))
            moved = t.map(below.shape, lambda *i: point * (below[i] - high), name="columns")
            made = t.map(made.shape, lambda *i, made=made: made[i] - moved[(*i[:-2], i[-1])], name="less_columns")
        if y_zero is not None or right:
            beside = t.sum(plain.shape[:-1], (depth,), lambda *i: cast(I32, plain[i]), name="beside")
            own = literal(a.left, I32) if x_zero is None else _point(x_zero) + a.left
            point = literal(right, I32) if y_zero is None else _point(y_zero) + right
            change = t.map(beside.shape, lambda *i: point * (beside[i] - own * cast(I32, wrap(depth))), name="rows")
            made = t.map(made.shape, lambda *i, made=made: made[i] - change[i[:-1]], name="less_rows")
        return made


ALL = (ConvDot, CrossedSums, WindowSums, LessPoints, MatmulDot, ActivationsDot)
