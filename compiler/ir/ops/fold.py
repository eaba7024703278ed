"""Col2Im, MaxUnpool and CenterCropPad: parts placed into a larger tensor, or cut out."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, floordiv, product
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.operator.ranks import length, plus, same
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.movement import static_dims, static_ints, unflatten
from occ.compiler.ir.shape import at_least, equal_dims, equal_part, normalize_axes, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import cast, equal, literal, where, wrap


@op("Col2Im", static=("image_shape", "block_shape"), rank=lambda x, size, *_, a: plus(2, length(size)))
class Col2Im:
    """Overlapping blocks summed into an image: each pixel takes the blocks that cover it (ONNX Col2Im)."""

    def body(t, x, image_shape, block_shape, *, a):
        image = static_dims("Col2Im", "image_shape", image_shape)
        block = static_ints("Col2Im", "block_shape", block_shape)
        n = len(image)
        if len(block) != n or x.rank != 3:
            raise Invalid(f"`Col2Im` of {show_shape(x.shape)}: image {show_shape(image)}, block {show_shape(block)}")
        strides, dilations = (tuple(v or (1,) * n) for v in (a.strides, a.dilations))
        pads = tuple(a.pads or (0,) * (2 * n))
        counts: list[Dim] = [
            floordiv(size + pads[k] + pads[n + k] - (block[k] - 1) * dilations[k] - 1, strides[k]) + 1
            for k, size in enumerate(image)
        ]
        equal_dims(x.shape[2], product(counts), "`Col2Im`: number of blocks")
        taps = int(product(block))
        channels = equal_part(x.shape[1], taps, "`Col2Im`: channels and the positions of a block")
        # Along an axis, the number of blocks that cover a pixel is at most a block's length divided by their distance.
        # A sum over those has fewer terms than one over the taps, most of which are between blocks.
        covering = [-(-((b - 1) * d + 1) // s) for b, d, s in zip(block, dilations, strides, strict=True)]
        terms = [min(pair) for pair in zip(covering, block, strict=True)]

        def found(k, at, j):
            """The j-th block that may cover a pixel along axis k, its tap, and whether it does cover it."""
            if terms[k] == block[k]:
                reach = at + pads[k] - j * dilations[k]
                place = reach // strides[k]
                return place, j, (reach >= 0) & equal(reach % strides[k], 0) & (place < wrap(counts[k]))
            place = (at + pads[k]) // strides[k] - j
            reach = (at + pads[k]) % strides[k] + j * strides[k]
            tap = reach // dilations[k]
            inside = (place >= 0) & (place < wrap(counts[k])) & (tap < block[k])
            return place, tap, inside if dilations[k] == 1 else inside & equal(reach % dilations[k], 0)

        def term(*i):
            batch, c, at, steps = i[0], i[1], i[2 : 2 + n], i[2 + n :]
            column, flat, inside = literal(0, I64), literal(0, I64), literal(True, BOOL)
            for k in range(n):
                place, tap, there = found(k, at[k], steps[k])
                inside, column, flat = inside & there, column * wrap(counts[k]) + place, flat * block[k] + tap
            value = f.in_acc(x[batch, c * taps + flat, column])
            return where(inside, value, literal(0, value.dtype))

        shape = (x.shape[0], channels, *image)
        acc = t.sum(shape, terms, term, name="col2im")
        return acc if acc.dtype == x.dtype else t.map(shape, lambda *i: cast(x.dtype, acc[i]), name="narrow")


IN_OUTPUT_SHAPE = "in_output_shape"  # an attribute: positions count in `output_shape`, not in the default shape


@op("MaxUnpool", static=("output_shape",), rank=same)
class MaxUnpool:
    """Each element at the flat position that MaxPool recorded for it; zeros elsewhere (ONNX MaxUnpool)."""

    def body(t, x, indices, output_shape=None, *, a):
        n = x.rank - 2
        kernel, strides = tuple(a.kernel_shape), tuple(a.strides or (1,) * n)
        pads = tuple(a.pads or (0,) * (2 * n))
        if not len(kernel) == len(strides) == n or len(pads) != 2 * n:
            raise Invalid(f"`MaxUnpool`: kernel, strides or pads do not fit {n} spatial axes", code="OCC0107")
        inner = tuple((x.shape[2 + k] - 1) * strides[k] - pads[k] - pads[n + k] + kernel[k] for k in range(n))
        shape = (*x.shape[:2], *inner)
        if indices.rank != x.rank:
            raise Invalid(f"`MaxUnpool`: indices of {show_shape(indices.shape)} for data of {show_shape(x.shape)}")
        for given, extent in zip(indices.shape, x.shape, strict=True):
            equal_dims(given, extent, "`MaxUnpool`: the shapes of data and indices")
        stated = None if output_shape is None else static_dims("MaxUnpool", "output_shape", output_shape)
        rest = () if stated is None else _rest(shape, stated)
        padded = stated is not None and not getattr(a, IN_OUTPUT_SHAPE, 0)
        into = shape if stated is None or padded else stated
        size = product(into)
        t.check(
            x.shape,
            lambda *i: (indices[i] >= 0) & (indices[i] < wrap(size)),
            "`MaxUnpool` has an index outside of the output",
        )
        whole = t.scatter(
            into,
            lambda *i: literal(0, x.dtype),
            x.shape,
            lambda *u: unflatten(indices[u], into),
            lambda *u: x[u],
        )
        return t.pad(whole, (0,) * x.rank, rest, 0) if padded else whole


def _rest(shape: tuple[Dim, ...], stated: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """How much larger the stated shape is, of the same batches and channels."""
    if len(stated) != len(shape):
        raise Invalid(f"`output_shape` of `MaxUnpool` has {len(stated)} entries for rank {len(shape)}")
    said = f"`output_shape` of `MaxUnpool` is {show_shape(stated)}"
    for n, m in zip(stated[:2], shape[:2], strict=True):
        equal_dims(n, m, f"{said}: batches and channels of the data")
    what = f"{said}, less than the {show_shape(shape)} of the elements"
    return tuple(at_least(n, m, what) - m for n, m in zip(stated, shape, strict=True))


@op("CenterCropPad", static=("shape",), rank=same)
class CenterCropPad:
    """The centre of each axis cropped, or padded with zeros, to a size (ONNX CenterCropPad)."""

    def body(t, x, shape, *, a):
        asked = static_dims("CenterCropPad", "shape", shape)
        axes = range(x.rank) if a.axes is None else normalize_axes(a.axes, x.rank, "CenterCropPad")
        if len(asked) != len(axes):
            raise Invalid(f"`shape` of `CenterCropPad` has {len(asked)} entries for {len(axes)} axes")
        sizes = dict(zip(axes, asked, strict=True))
        before, after = [0] * x.rank, [0] * x.rank
        for k, n in sizes.items():
            left = floordiv(dim.maximum(n - x.shape[k], 0), 2) - floordiv(dim.maximum(x.shape[k] - n, 0), 2)
            before[k], after[k] = left, n - x.shape[k] - left
        return t.pad(x, before, after, literal(0, x.dtype))


ALL = (Col2Im, MaxUnpool, CenterCropPad)
