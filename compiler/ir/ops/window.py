"""Sliding windows and convolution, in any number of spatial axes."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, ceildiv, floordiv, lower
from occ.compiler.ir.layout import Layout, in_panels
from occ.compiler.ir.operator.random_shapes import convolved
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.window_lanes import fits_planes, runs_along_rows
from occ.compiler.ir.shape import assume_at_least, equal_dims, equal_shapes, show_shape, surely_different
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, literal, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.roles import CONV
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Window:
    """A window over spatial axes: everything per axis, begin and end pads resolved from `auto_pad`."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]
    out: tuple[Dim, ...]

    def position(self, o: Sequence[Expr], k: Sequence[Expr]) -> tuple[Expr, ...]:
        """The position of tap `k` of output `o` in the padded input."""
        return tuple(i * s + j * d for i, s, j, d in zip(o, self.strides, k, self.dilations, strict=True))


def window_of(
    name: str, spatial: Sequence[Dim], kernel: Sequence[Dim], a: SimpleNamespace, *, clips: bool = False
) -> Window:
    """The window that the attributes of Conv and the pools describe.

    Args:
        clips: whether a window that exceeds the input by less than a stride counts, over the elements that exist. The
            pools of onnxruntime do this, and ONNX shape inference, which rounds towards 0. Symbolic sizes round down to
            stay short, and the run checks that the result is the same.

    Raises:
        Invalid: an attribute has the wrong length, or the kernel does not fit into the padded input.
    """
    n = len(spatial)
    taps = known_taps(name, kernel)
    strides, dilations = (tuple(getattr(a, key, None) or (1,) * n) for key in ("strides", "dilations"))
    for key, value, length in (("kernel_shape", taps, n), ("strides", strides, n), ("dilations", dilations, n)):
        if len(value) != length:
            raise Invalid(f"`{key}` of `{name}` has {len(value)} entries for {n} spatial axes", code="OCC0107")
    reach = tuple((k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True))
    before, after = _pads(name, spatial, reach, strides, a)
    out: list[Dim] = []
    for size, r, s, b, e in zip(spatial, reach, strides, before, after, strict=True):
        space = size + b + e - r
        if clips and lower(space) < 0:
            if isinstance(space, int):
                space = ceildiv(space, s) * s
            elif not getattr(a, "ceil_mode", 0):
                _assume_room(size + b + e, r, s)
        if isinstance(space, int) and space < (-s if clips else 0):
            raise Invalid(f"the window of `{name}` spans {r} elements, but the padded input has only {size + b + e}")
        if getattr(a, "ceil_mode", 0):
            steps = ceildiv(space, s) + 1
            # A last window that would start in the end padding is dropped (ONNX MaxPool, output shape).
            if s > 1:
                steps = dim.minimum(steps, floordiv(size + b - 1, s) + 1)
            out.append(steps)
        else:
            out.append(floordiv(space, s) + 1)
    return Window(taps, strides, dilations, before, after, tuple(out))


def _assume_room(padded: Dim, reach: int, stride: int) -> None:
    """Require at run time that rounding the steps of windows down is rounding them towards 0.

    Where it is not, an axis of `reach` elements is required, the shortest of which a result has elements.
    """
    space = padded - reach
    steps = dim.minimum(ceildiv(space, stride), 0)
    if steps != dim.minimum(floordiv(space, stride), 0):
        is_cut = dim.minimum(stride * steps - dim.minimum(space, 0), 1)  # 1 if a part of a stride is, else 0
        assume_at_least(padded, padded - space * is_cut)


def _pads(
    name: str, spatial: Sequence[Dim], reach: Sequence[int], strides: Sequence[int], a: SimpleNamespace
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    n = len(spatial)
    if a.auto_pad in ("NOTSET", ""):
        pads = tuple(a.pads or (0,) * (2 * n))
        if len(pads) != 2 * n:
            raise Invalid(f"`pads` of `{name}` has {len(pads)} entries for {n} spatial axes", code="OCC0107")
        return pads[:n], pads[n:]
    if a.auto_pad == "VALID":
        return (0,) * n, (0,) * n
    if a.auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise Invalid(f"`auto_pad` of `{name}` is {a.auto_pad!r}", code="OCC0107")
    before: list[Dim] = []
    after: list[Dim] = []
    for size, r, s in zip(spatial, reach, strides, strict=True):
        # If the stride exceeds the kernel, ONNX's formula for `pad_shape` may be negative. Nothing is padded then: pads
        # are "greater than or equal to 0", and without any the result has the extent that SAME requires, ceil(size /
        # stride). Runtimes do so for convolutions; for pools onnxruntime fails or shifts the windows, and so does
        # onnx.reference.
        total = dim.maximum((ceildiv(size, s) - 1) * s + r - size, 0)
        small, large = floordiv(total, 2), ceildiv(total, 2)
        before.append(small if a.auto_pad == "SAME_UPPER" else large)
        after.append(large if a.auto_pad == "SAME_UPPER" else small)
    return tuple(before), tuple(after)


def kernel_of(name: str, w: Tensor, a: SimpleNamespace) -> tuple[Dim, ...]:
    """The extents of the kernel: the attribute `kernel_shape` if it is stated, else what the weight has.

    Symbolic extents of the weight are assumed to be the stated ones.

    Raises:
        Invalid: the weight has other extents than `kernel_shape`.
    """
    kernel = w.shape[2:]
    if not a.kernel_shape:
        return kernel
    said = f"`kernel_shape` of `{name}` is {show_shape(a.kernel_shape)}, the weight is {show_shape(w.shape)}"
    if len(a.kernel_shape) != len(kernel) or any(map(surely_different, a.kernel_shape, kernel)):
        raise Invalid(said)
    for stated, extent in zip(a.kernel_shape, kernel, strict=True):
        equal_dims(stated, extent, said)
    return tuple(a.kernel_shape)


def known_taps(name: str, kernel: Sequence[Dim]) -> tuple[int, ...]:
    """The extents of a kernel as numbers.

    Raises:
        Unresolved: one is symbolic, so the run decides.
    """
    if any(not isinstance(k, int) for k in kernel):
        raise Unresolved(name, "W")
    return tuple(int(k) for k in kernel)  # pyright: ignore[reportArgumentType]


def conv_window(name: str, x: Tensor, w: Tensor, a: SimpleNamespace) -> Window:
    """The window of a convolution, its operands checked.

    Raises:
        Invalid: ranks, channels or groups do not fit.
    """
    if x.rank != w.rank or x.rank < 3:
        raise Invalid(f"`{name}` takes an input and a weight of one rank above 2, not ranks {x.rank} and {w.rank}")
    return window_of(name, x.shape[2:], kernel_of(name, w, a), a)


def convolution(t: Builder, name: str, x: Tensor, w: Tensor, a: SimpleNamespace) -> Tensor:
    """The sums of a convolution, in the accumulation type.

    Raises:
        Invalid: ranks, channels or groups do not fit.
    """
    win = conv_window(name, x, w, a)
    per_group = w.shape[1]
    if isinstance(x.shape[1], int) and isinstance(per_group, int) and x.shape[1] != per_group * a.group:
        raise Invalid(
            f"`{name}` input has {x.shape[1]} channels but the weight expects {per_group * a.group}",
            note=f"the weight is {w.type}; channels must equal {per_group} * group, and group is {a.group}",
        )
    equal_dims(x.shape[1], per_group * a.group, f"`{name}`: channels of input and weight differ")
    if a.group > 1:
        equal_dims(floordiv(w.shape[0], a.group) * a.group, w.shape[0], f"`{name}`: filters in groups of one size")
    padded = t.pad(x, (0, 0, *win.before), (0, 0, *win.after), literal(0, x.dtype))
    shape = (x.shape[0], w.shape[0], *win.out)
    each = floordiv(w.shape[0], a.group)
    n = len(win.out)

    def product(*i: Expr) -> Expr:
        batch, o, pos, c, tap = i[0], i[1], i[2 : 2 + n], i[2 + n], i[3 + n :]
        channel = c if a.group == 1 else o // wrap(each) * wrap(per_group) + c
        value = padded[(batch, channel, *win.position(pos, tap))]
        return f.in_acc(value) * f.in_acc(w[(o, c, *tap)])

    return t.sum(shape, (per_group, *win.kernel), product, role=CONV)


@op("Conv", tags=("contraction",), sample=convolved)
class Conv:
    """Convolution: `out[n, o, y...] = b[o] + sum(x[n, c, y*s + k*d - pad] * w[o, c, k...])`."""

    def reads(x, w, *_, a):
        """Vectors run along the channels, or along rows if there are groups, or too few channels to fill one."""
        if a.group > 1:
            depthwise = "planes" if fits_planes(x, w, a) else "channels"
            return depthwise if w.shape[:2] == (a.group, 1) else "rows"
        return "rows" if runs_along_rows(x, w, a) else "channels"

    writes = reads

    def weight(x, w, *_, a, lanes):
        if not w.dtype.is_float:
            return None
        taps = tuple(range(2, w.rank))
        if a.group > 1:
            in_planes = fits_planes(x, w, a) and not x.type.layout.is_permuted
            return Layout((*range(1, w.rank), 0)) if w.shape[1] == 1 and not in_planes else None
        if runs_along_rows(x, w, a):
            return None
        # Channels innermost for channels-last inputs; taps innermost if channels are few and not contiguous.
        wide = x.type.layout.is_permuted or not isinstance(x.shape[1], int) or x.shape[1] >= 8
        return in_panels(w.shape, 0, (0, *taps, 1) if wide else (0, 1, *taps), lanes, 2)

    def body(t, x, w, b=None, *, a):
        acc = convolution(t, "Conv", x, w, a)
        if b is not None:
            equal_shapes(b.shape, w.shape[:1], "`Conv`: the bias")
        if b is None and acc.dtype == x.dtype:
            return acc
        bias = (lambda i: 0) if b is None else (lambda i: f.in_acc(b[i[1]]))
        return t.map(acc.shape, lambda *i: cast(x.dtype, acc[i] if b is None else acc[i] + bias(i)), name="conv_out")


ALL = (Conv,)
