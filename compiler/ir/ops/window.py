"""Sliding windows: convolution and transposed convolution, in any number of spatial axes."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, ceildiv, floordiv, lower
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.layout import Layout, in_panels
from occ.compiler.ir.operator.random_shapes import convolved, picture
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.window_lanes import fits_planes, runs_along_rows
from occ.compiler.ir.shape import assume_equal, at_least, equal_dims, equal_shapes, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.te.roles import CONV


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
    if any(not isinstance(k, int) for k in kernel):
        raise Unresolved(name, "W")
    taps = tuple(int(k) for k in kernel)  # pyright: ignore[reportArgumentType]
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
                space = 0 if space > -s else space
            elif not getattr(a, "ceil_mode", 0):
                assume_equal(dim.minimum(ceildiv(space, s), 0), dim.minimum(floordiv(space, s), 0))
        if isinstance(space, int) and space < 0:
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


def fit_kernel(name: str, w: Tensor, a: SimpleNamespace) -> None:
    """Require that the attribute `kernel_shape`, if stated, matches the weight."""
    if a.kernel_shape and tuple(a.kernel_shape) != w.shape[2:]:
        raise Invalid(
            f"`kernel_shape` of `{name}` is {show_shape(a.kernel_shape)}, the weight is {show_shape(w.shape)}"
        )


def conv_window(name: str, x: Tensor, w: Tensor, a: SimpleNamespace) -> Window:
    """The window of a convolution, its operands checked.

    Raises:
        Invalid: ranks, channels or groups do not fit.
    """
    if x.rank != w.rank or x.rank < 3:
        raise Invalid(f"`{name}` takes an input and a weight of one rank above 2, not ranks {x.rank} and {w.rank}")
    fit_kernel(name, w, a)
    return window_of(name, x.shape[2:], w.shape[2:], a)


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


_HALF, _WHOLE = 8, 16  # elements of half a vector, and of one


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


def transposed_window(x: Tensor, w: Tensor, a: SimpleNamespace) -> Window:
    """The window of ConvTranspose; `before` and `out` as its own output-shape rules give them."""
    n = x.rank - 2
    fit_kernel("ConvTranspose", w, a)
    for key, length in {"strides": n, "dilations": n, "output_padding": n, "pads": 2 * n}.items():
        if (given := getattr(a, key)) and len(given) != length:
            raise Invalid(f"`{key}` of `ConvTranspose` has {len(given)} entries for {n} spatial axes", code="OCC0107")
    taps = tuple(int(k) for k in w.shape[2:])
    strides, dilations = (tuple(getattr(a, key) or (1,) * n) for key in ("strides", "dilations"))
    extra = tuple(a.output_padding or (0,) * n)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        said = f"`output_padding` of `ConvTranspose` is {show_shape(extra)}"
        note = f"each must be less than the stride or the dilation: {show_shape(strides)} and {show_shape(dilations)}"
        raise Invalid(said, code="OCC0107", note=note)
    before: list[Dim] = []
    after: list[Dim] = []
    out: list[Dim] = []
    for k in range(n):
        full = (x.shape[2 + k] - 1) * strides[k] + extra[k] + (taps[k] - 1) * dilations[k] + 1
        if a.output_shape or a.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            most = full - extra[k] + strides[k] - 1
            size: Dim = _stated_extent(a.output_shape, k, most, n) if a.output_shape else x.shape[2 + k] * strides[k]
            total = full - size  # negative if the stride exceeds the kernel: then zeros are added around
            half = floordiv(total, 2)
            first = half if a.auto_pad == "SAME_UPPER" else total - half
            before.append(dim.maximum(first, 0) if a.output_shape else first)  # stated extents begin with the first tap
            after.append(total - before[-1])
            out.append(size)
        else:
            pads = (0,) * (2 * n) if a.auto_pad == "VALID" or not a.pads else a.pads
            before.append(pads[k])
            after.append(pads[n + k])
            out.append(full - pads[k] - pads[n + k])
    return Window(taps, strides, dilations, tuple(before), tuple(after), tuple(out))


def _stated_extent(output_shape: Sequence[int], k: int, most: Dim, n: int) -> int:
    """The extent that `output_shape` states for a spatial axis; a convolution of it has the extent of the input."""
    said = f"`output_shape` of `ConvTranspose` is {show_shape(output_shape)}"
    if len(output_shape) not in (n, n + 2):  # early exporters list all axes
        raise Invalid(f"{said}: it has {len(output_shape)} entries for {n} spatial axes", code="OCC0107")
    size = output_shape[len(output_shape) - n + k]
    if size <= 0:
        raise Invalid(f"{said}: an extent is above 0", code="OCC0107")
    at_least(most, size, f"{said}, and {size} elements are more than the input and the kernel reach: {most}")
    return size


@op("ConvTranspose", tags=("contraction",), sample=picture)
class ConvTranspose:
    """Transposed convolution in gather form: output `p` reads inputs `q` with `q*stride + tap*dilation = p + pad`."""

    def body(t, x, w, b=None, *, a):
        if x.rank != w.rank or x.rank < 3:
            raise Invalid(f"`ConvTranspose` takes operands of one rank above 2, not {x.rank} and {w.rank}")
        equal_dims(x.shape[1], w.shape[0], "`ConvTranspose`: channels of input and weight differ")
        win = transposed_window(x, w, a)
        n, each = len(win.out), w.shape[1]
        shape = (x.shape[0], each * a.group, *win.out)
        if b is not None:
            equal_shapes(b.shape, shape[1:2], "`ConvTranspose`: the bias")
        channels = floordiv(x.shape[1], a.group)
        equal_dims(channels * a.group, x.shape[1], "`ConvTranspose`: channels in groups of one size")
        # With dilation 1 only taps of the output's own phase are visited: ceil(kernel / stride) of them.
        phased = [d == 1 for d in win.dilations]
        visits = [-(-k // s) if p else k for k, s, p in zip(win.kernel, win.strides, phased, strict=True)]

        def product(*i):
            batch, o, pos, c, visit = i[0], i[1], i[2 : 2 + n], i[2 + n], i[3 + n :]
            taps, rows, inside = [], [], literal(True, BOOL)
            for k in range(n):
                shifted = pos[k] + win.before[k]
                s, d = win.strides[k], win.dilations[k]
                if phased[k]:
                    tap, row = shifted % s + visit[k] * s, shifted // s - visit[k]
                    inside = inside & (tap < win.kernel[k]) & (row >= 0) & (row < x.shape[2 + k])
                else:
                    tap, reach = visit[k], shifted - visit[k] * d
                    row = reach // s
                    inside = inside & (reach >= 0) & equal(reach % s, 0) & (row < x.shape[2 + k])
                taps.append(tap)
                rows.append(row)
            group = o // wrap(each) if a.group > 1 else literal(0, I64)
            channel = c + group * wrap(channels)
            filter_ = o - group * wrap(each) if a.group > 1 else o
            value = f.in_acc(x[(batch, channel, *rows)]) * f.in_acc(w[(channel, filter_, *taps)])
            return where(inside, value, literal(0, value.dtype))

        acc = t.sum(shape, (channels, *visits), product, name="conv_transpose")
        if b is None and acc.dtype == x.dtype:
            return acc
        return t.map(
            shape,
            lambda *i: cast(x.dtype, acc[i] if b is None else acc[i] + f.in_acc(b[i[1]])),
            name="conv_transpose_out",
        )


ALL = (Conv, ConvTranspose)
