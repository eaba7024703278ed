"""Operators of com.microsoft that exporters write where ONNX has none, or had none: inverses, crops, unfolded axes."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import math
from functools import reduce
from operator import and_

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.dim import floordiv, maximum
from occ.compiler.ir.dtype import BOOL, I32, I64, STR, U32, U64
from occ.compiler.ir.operator.ranks import fixed
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.fused import DOMAIN
from occ.compiler.ir.ops.movement import static_ints
from occ.compiler.ir.ops.prefix import LARGEST_MATRIX, largest_pivot_first
from occ.compiler.ir.shape import data_dim, equal_dims, equal_shapes, normalize_axis
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, binary, call, cast, equal, literal, minimum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor
from occ.compiler.ir.types import TensorType


@op(f"{DOMAIN}.Inverse", signature=FormalSignature.of("X"))
class Inverse:
    """Inverses of square matrices by elimination with pivoting, one column a stage; what is singular comes out infinite or NaN."""

    def body(t, x, *, a):
        n = x.shape[-1] if x.rank else 0
        if x.rank < 2 or x.shape[-2] != n or not isinstance(n, int):
            raise Invalid(f"`Inverse` takes square matrices of constant size, not {x.type}")
        if n > LARGEST_MATRIX:
            raise Invalid(
                f"`Inverse` takes matrices of up to {LARGEST_MATRIX} rows, not {n}: each column is a stage of the kernel"
            )
        dtype = x.dtype.acc

        def with_unit(*i: Expr) -> Expr:
            *at, column = i
            unit = where(equal(column - n, at[-1]), literal(1, dtype), literal(0, dtype))
            return where(column < n, cast(dtype, x[(*at, minimum(column, n - 1))]), unit)

        m = t.map((*x.shape[:-1], 2 * n), with_unit, name="matrix")
        for c in range(n):
            m = _reduced(t, m, c)
        return t.map(x.shape, lambda *i: cast(x.dtype, m[(*i[:-1], i[-1] + n)]), name="inverse")


def _reduced(t: Builder, m: Tensor, c: int) -> Tensor:
    """Column `c` a unit vector, by sums of rows, after its largest remaining element has come to row `c`."""
    s, _ = largest_pivot_first(t, m, c)

    def element(*i: Expr) -> Expr:
        *b, row, column = i
        own = s[(*b, wrap(c), column)] / s[(*b, wrap(c), wrap(c))]
        return where(equal(row, c), own, s[i] - s[(*b, row, wrap(c))] * own)

    return t.map(m.shape, element, name="reduced")


@op(f"{DOMAIN}.UnfoldTensor", signature=FormalSignature.of("input", "output", dim=-1, size=None, step=1))
class UnfoldTensor:
    """Slices of `size` along an axis, `step` apart: the axis counts them, and their elements are a new last axis."""

    def body(t, x, *, a):
        axis = normalize_axis(a.dim, x.rank, "UnfoldTensor")
        extent, size, step = x.shape[axis], a.size, a.step
        if not size or size < 1 or step < 1 or (isinstance(extent, int) and size > extent):
            raise Invalid(f"`UnfoldTensor` of {x.type} with size={size} and step={step}", code="OCC0107")
        shape = (*x.shape[:axis], floordiv(extent - size, step) + 1, *x.shape[axis + 1 :], size)

        def element(*i: Expr) -> Expr:
            return x[(*i[:axis], i[axis] * step + i[-1], *i[axis + 1 : -1])]

        return t.map(shape, element, name="unfolded")


@op(f"{DOMAIN}.Unique", signature=FormalSignature.of("x", "y idx counts"))
class UniqueInOrder:
    """Unique of a vector in the order of first occurrence; which element each is; how often it occurs."""

    def composite(b, x, *, a):
        if x.tensor.rank != 1:
            raise Invalid(f"`Unique` of `{DOMAIN}` takes a vector, not {x.tensor}")
        y, _, which, counts = b.Unique(x, sorted=0, n_results=4)
        return (y, which, counts)[: a.n_results]


_TRANSPOSED = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "output_padding": None, "strides": None}  # fmt: skip


@op(f"{DOMAIN}.ConvTransposeWithDynamicPads", signature=FormalSignature.of("X W Pads? B?", **_TRANSPOSED))
class ConvTransposeWithDynamicPads:
    """ConvTranspose whose pads are an operand."""

    def composite(b, x, w, pads=None, bias=None, *, a):
        known = None if pads is None else static_elements(pads)
        if pads is not None and (known is None or not all(isinstance(p, int) for p in known)):
            raise Invalid("`ConvTransposeWithDynamicPads` with pads that are no known numbers", code="OCC0107")
        return b.ConvTranspose(x, w, bias, pads=known, **{k: getattr(a, k) for k in _TRANSPOSED})


@op(f"{DOMAIN}.MatMulInteger16", signature=FormalSignature.of("A B"))
class MatMulInteger16:
    """A product of 16-bit integers, in 32 bits."""

    def composite(b, x, y, *, a):
        signed = x.tensor.dtype.name == "i16" or y.tensor.dtype.name == "i16"
        return b.MatMul(*(b.Cast(v, to=I32 if signed else U32) for v in (x, y)))


@op(
    f"{DOMAIN}.CropAndResize",
    signature=FormalSignature.of("X rois batch_indices crop_size", extrapolation_value=0.0, mode="bilinear"),
    static=("crop_size",),
    rank=fixed(4),
)
class CropAndResize:
    """Regions `[y1, x1, y2, x2]` of images `[n, c, h, w]`, resized to one size.

    Corners are in parts of the last pixel's position, and each is read at a corner of the crop. Positions outside of
    the image have `extrapolation_value`.
    """

    def body(t, x, rois, batches, size, *, a):
        crop = static_ints("CropAndResize", "crop_size", size)
        if x.rank != 4 or rois.rank != 2 or len(crop) != 2:
            raise Invalid(f"`CropAndResize` of {x.type}, regions {rois.type} and {len(crop)} sizes")
        if a.mode not in ("bilinear", "nearest"):
            raise Invalid(f"`mode` of `CropAndResize` is {a.mode!r}", code="OCC0107")
        equal_dims(rois.shape[1], 4, "`CropAndResize`: a region has four corners")
        equal_shapes(batches.shape, rois.shape[:1], "`CropAndResize`: regions and their batch indices")
        t.check(
            batches.shape,
            lambda k: (batches[k] >= 0) & (cast(I64, batches[k]) < wrap(x.shape[0])),
            "`CropAndResize` has a batch index outside of the data",
        )
        dtype = x.dtype.acc
        last = [cast(dtype, wrap(n - 1)) for n in x.shape[2:]]
        at = [_along(t, rois, crop[k], last[k], k) for k in (0, 1)]
        shape = (rois.shape[0], x.shape[1], *crop)

        def element(r: Expr, c: Expr, *p: Expr) -> Expr:
            batch = cast(I64, batches[r])
            places = [v[r, q] for v, q in zip(at, p, strict=True)]

            def pixel(y: Expr, z: Expr) -> Expr:
                return f.in_acc(x[batch, c, cast(I64, y), cast(I64, z)])

            low, high = ([call(way, v) for v in places] for way in ("floor", "ceil"))
            parts = [v - begin for v, begin in zip(places, low, strict=True)]

            def across(row: Expr) -> Expr:
                left = pixel(row, low[1])
                return left + (pixel(row, high[1]) - left) * parts[1]

            if a.mode == "nearest":
                value = pixel(*(call("floor", v + 0.5) for v in places))
            else:
                value = across(low[0]) + (across(high[0]) - across(low[0])) * parts[0]
            inside = [(v >= 0.0) & (v <= end) for v, end in zip(places, last, strict=True)]
            return cast(x.dtype, where(inside[0] & inside[1], value, literal(a.extrapolation_value, dtype)))

        return t.map(shape, element, name="crops")


def _along(t: Builder, rois: Tensor, n: int, last: Expr, axis: int) -> Tensor:
    """Positions of the pixels of each crop along an axis: f32[regions, n]."""

    def place(r: Expr, p: Expr) -> Expr:
        begin, end = (f.in_acc(rois[r, wrap(axis + k)]) for k in (0, 2))
        if n == 1:
            return (begin + end) * 0.5 * last
        step = (end - begin) * last / float(n - 1)
        return where(equal(p, n - 1), end * last, begin * last + cast(last.dtype, p) * step)

    return t.map((rois.shape[0], n), place, name="at")


@op(f"{DOMAIN}.NGramRepeatBlock", signature=FormalSignature.of("input_ids scores", "scores_out", ngram_size=None))
class NGramRepeatBlock:
    """Scores `[n, words]`, minus infinity for each word that would repeat some `ngram_size` words of `input_ids` `[n, length]`."""

    def body(t, ids, scores, *, a):
        size = a.ngram_size
        if not size or size < 1 or (ids.rank, scores.rank) != (2, 2):
            raise Invalid(f"`NGramRepeatBlock` of {ids.type} and {scores.type} with ngram_size={size}", code="OCC0107")
        equal_dims(ids.shape[0], scores.shape[0], "`NGramRepeatBlock`: rows of words and of scores")
        n, length, words = *ids.shape, scores.shape[1]
        t.check(
            ids.shape, lambda i, j: (ids[i, j] >= 0) & (ids[i, j] < wrap(words)), "`NGramRepeatBlock` has a word outside of the scores"
        )  # fmt: skip
        starts = maximum(length - size + 1, 0)
        low, high = (literal(v, scores.dtype) for v in (-math.inf, math.inf))

        def repeats(i: Expr, k: Expr) -> Expr:
            same = [equal(ids[i, k + j], ids[i, wrap(length - size + 1 + j)]) for j in range(size - 1)]
            return reduce(and_, same, literal(True, BOOL))

        def blocked(i: Expr, k: Expr) -> Expr:
            return where(repeats(i, k), low, high)

        return t.scatter(
            scores.shape, lambda *i: scores[i], (n, starts), lambda i, k: (i, cast(I64, ids[i, k + (size - 1)])), blocked,
            combine="min",
        )  # fmt: skip


@op("murmur3", own_attributes="seed=int")
class Murmur3:
    """MurmurHash3 of 32 bits of each element, u32 or u64, as bytes: u32."""

    operands = ("x",)

    def body(t, x, *, a):
        def word(v: int) -> Expr:
            return literal(v & 0xFFFFFFFF, U32)

        def turned(v: Expr, by: int) -> Expr:
            return binary("shl", v, word(by)) ^ binary("shr", v, word(32 - by))

        def mixed(h: Expr, v: Expr) -> Expr:
            h = h ^ turned(v * word(0xCC9E2D51), 15) * word(0x1B873593)
            return turned(h, 13) * word(5) + word(0xE6546B64)

        def element(*i: Expr) -> Expr:
            h = mixed(word(a.seed), cast(U32, x[i]))
            if x.dtype.bits == 64:
                h = mixed(h, cast(U32, binary("shr", x[i], literal(32, x.dtype))))
            h = h ^ word(x.dtype.bits // 8)
            for by, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
                h = (h ^ binary("shr", h, word(by))) * word(factor)
            return h ^ binary("shr", h, word(16))

        return t.map(x.shape, element, name="murmur3")


@op("murmur3_of_text", host="murmur3_of_text", own_attributes="seed=int")
class Murmur3OfText:
    """MurmurHash3 of 32 bits of each string in UTF-8: u32."""

    operands = ("x",)

    def infer(x, *, a):
        return TensorType(U32, x.type.shape)


@op(f"{DOMAIN}.MurmurHash3", signature=FormalSignature.of("X", positive=1, seed=0))
class MurmurHash3:
    """MurmurHash3 of 32 bits of each element: u32, or i32 if not `positive`. ML.NET writes it for its hashed features."""

    def composite(b, x, *, a):
        dtype = x.tensor.dtype
        if dtype == STR:
            y = b.murmur3_of_text(x, seed=a.seed)
        elif dtype.bits in (32, 64):
            y = b.murmur3(b.BitCast(x, to=U32 if dtype.bits == 32 else U64), seed=a.seed)
        else:
            raise Invalid(f"`MurmurHash3` of {x.tensor}")
        return y if a.positive else b.BitCast(y, to=I32)


@op(f"{DOMAIN}.DynamicTimeWarping", host="DynamicTimeWarping", signature=FormalSignature.of("input", "output"))
class DynamicTimeWarping:
    """The cheapest path through a cost matrix from corner to corner: its rows and columns, i32[2, n].

    Costs are `[rows, columns]` or `[1, rows, columns]`.
    """

    def infer(x, *, a):
        if x.type.shape is not None and (x.rank not in (2, 3) or (x.rank == 3 and x.shape[0] != 1)):
            raise Invalid(f"`DynamicTimeWarping` takes a matrix, not {x.type}")
        return TensorType(I32, (2, data_dim(0)))


ALL = (
    Inverse, UnfoldTensor, UniqueInOrder, ConvTransposeWithDynamicPads, MatMulInteger16, CropAndResize, NGramRepeatBlock,
    Murmur3, Murmur3OfText, MurmurHash3, DynamicTimeWarping,
)  # fmt: skip
