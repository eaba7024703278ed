"""Transposed convolution, in any number of spatial axes."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, floordiv
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.operator.random_shapes import picture
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.window import Window, kernel_of, known_taps
from occ.compiler.ir.shape import at_least, equal_dims, equal_shapes, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Tensor


def transposed_window(x: Tensor, w: Tensor, a: SimpleNamespace) -> Window:
    """The window of ConvTranspose; `before` and `out` as its own output-shape rules give them."""
    n = x.rank - 2
    kernel = kernel_of("ConvTranspose", w, a)
    for key, length in {"strides": n, "dilations": n, "output_padding": n, "pads": 2 * n}.items():
        if (given := getattr(a, key)) and len(given) != length:
            raise Invalid(f"`{key}` of `ConvTranspose` has {len(given)} entries for {n} spatial axes", code="OCC0107")
    taps = known_taps("ConvTranspose", kernel)
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


ALL = (ConvTranspose,)
