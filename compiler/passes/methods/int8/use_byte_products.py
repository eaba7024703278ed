"""8-bit products in the form of the processor's instructions (VNNI, or 16-bit pairs)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import BF16, F32, I8, I32, I64, U8
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.own.quantised_codes import byte_shift, pairs_fit
from occ.compiler.ir.rewriter import OpRule, Rewriter, erase_dead
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.layout.narrow_weights import narrowed
from occ.compiler.passes.methods.int8.byte_weight import byte_weight
from occ.compiler.passes.methods.int8.crossed_products import crossed_convolution
from occ.compiler.passes.methods.int8.fitting_pairs import fitting_pairs
from occ.compiler.passes.methods.int8.paired_channels import paired_channels
from occ.compiler.passes.methods.int8.round_operands import is_rounded
from occ.compiler.passes.methods.int8.winograd_products import winograd_convolution
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

_LEAST = 4  # columns of a weight: fewer do not fill a vector
_CROSSED = 256  # bits of vectors of which products in 16 bits have half of the units that sums have (Zen 2 to 4)
_FEW = 8  # channels and filters: with fewer channels, they are not last in memory; fewer filters do not fill a vector


@dataclass(frozen=True)
class _Lanes:
    """How many products of bytes a lane sums, and the attributes that say so.

    Attributes:
        some: of those for any weight.
        how: attributes for any weight.
        pairs: whether a weight may have fours whose pairs are summed in 16 bits, if those fit.
    """

    some: int
    how: dict[str, int]
    pairs: bool
    planes: bool = False  # convolutions have lanes along positions, not filters

    def of(self, w: np.ndarray, axis: int) -> tuple[int, dict[str, int]]:
        """`some` and the attributes for a weight whose `axis` is summed."""
        if self.pairs and w.dtype == np.int8 and pairs_fit(np.moveaxis(_in_groups(w, axis, 2), axis + 1, -1)):
            return 4, {**self.how, "narrow": 1}
        return self.some, self.how


def integer_rules(
    machine: Machine, some: int = 0, *, planes: bool = False, winograd: bool = False
) -> dict[str, tuple[OpRule, ...]]:
    """The rules for integer products with `some` per lane, or as many as the machine adds at once."""
    panel, signed = 2 * machine.lanes(32), machine.signed_bytes
    in_pairs = _in_pairs(machine, some)
    lanes = _Lanes(some or machine.int8_dot_width, {"signed": 1} if signed else {}, in_pairs, planes)

    def convolution(op: Op, rw: Rewriter) -> bool:
        return _convolution(op, rw, lanes)

    def product(op: Op, rw: Rewriter) -> bool:
        return _product(op, rw, lanes)

    def activations_dot(op: Op, rw: Rewriter) -> bool:
        return _activations_dot(op, rw, panel, lanes)

    def by_tiles(op: Op, rw: Rewriter) -> bool:
        return winograd_convolution(op, rw, machine.lanes(16))

    winograds = (by_tiles,) if winograd and in_pairs and not planes else ()
    crossed = (crossed_convolution,) if in_pairs and not planes and machine.vector_bits == _CROSSED else ()
    return {"ConvInteger": (*winograds, *crossed, convolution), "MatMulInteger": (product, activations_dot)}


def _in_pairs(machine: Machine, some: int) -> bool:
    """Whether pairs of products of bytes are summed in 16 bits where they fit."""
    return not some and machine.int8_dot_width == 2 and not machine.signed_bytes


def _convolution(op: Op, rw: Rewriter, lanes: _Lanes) -> bool:
    """`ConvInteger` with a constant weight, and one group or one channel per group --> `conv_dot`."""
    x, _, zero, _ = (*op.operands, None, None)[:4]
    found = byte_weight(op)
    if x is None or found is None or x.tensor.dtype not in (U8, I8) or (zero is not None and zero.tensor.size != 1):
        return False
    (w, points), groups = found, op.a.group
    if w.shape[0] < _LEAST or (groups != 1 and (w.shape[1] != 1 or lanes.planes)):
        return False
    if points is not None and groups != 1:
        w, points = w - points.reshape(-1, *[1] * (w.ndim - 1)).astype(np.int16), None  # this costs no instruction
    b = rw.builder(op)
    window = {"auto_pad": op.a.auto_pad, "kernel_shape": w.shape[2:]}
    window |= {key: getattr(op.a, key) or () for key in ("pads", "strides", "dilations")}
    total = w.sum(tuple(range(1, w.ndim)), dtype=np.int64)
    some, how = lanes.of(w, 1) if groups == 1 else (1, lanes.how)
    around = {"group": groups, **window, **how} | ({"planes": 1} if lanes.planes else {})
    weight = b.constant(_filters(w, some, planes=lanes.planes) if groups == 1 else w)
    if zero is None or isinstance(zero, Weight):
        point = (0 if zero is None else int(zero.data.reshape(()))) + byte_shift(x.tensor.dtype, signed="signed" in how)
        made = b.conv_dot(x, weight, b.constant((-point * total).astype(np.int32)), zero=point, **around)
    else:
        made = b.conv_dot(x, weight, b.constant(total.astype(np.int32)), zero, zero=0, **around)
    if points is not None:
        sums = _sums(x, zero, 1, w.shape[1], b)
        if any(n != 1 for n in (*w.shape[2:], *window["strides"])) or any(window["pads"]):
            sums = b.window_sums(sums, **window)
        made = b.less_points(made, sums, b.constant(points.reshape(-1, *[1] * (w.ndim - 2))))
    rw.replace(op, [made])
    return True


def _product(op: Op, rw: Rewriter, lanes: _Lanes) -> bool:
    """`MatMulInteger` with a constant matrix on the right --> `matmul_dot`."""
    x, _, zero, _ = (*op.operands, None, None)[:4]
    found = byte_weight(op, columns=True)
    if x is None or found is None or found[0].ndim != 2 or found[0].shape[1] < _LEAST or found[0].shape[0] == 0:
        return False
    if x.tensor.dtype not in (U8, I8) or x.tensor.rank < 2 or (zero is not None and zero.tensor.size != 1):
        return False
    (w, points), b = found, rw.builder(op)
    moved = zero is not None or byte_shift(x.tensor.dtype, signed="signed" in lanes.how) != 0
    paired = fitting_pairs(w) if lanes.pairs and lanes.of(w, 0)[0] == 2 else None
    rows, order = (w, None) if paired is None else paired
    some, how = lanes.of(rows, 0)
    weight = b.constant(_in_groups(rows, 0, some))
    total = b.constant(w.sum(0, dtype=np.int64).astype(np.int32)) if moved else None
    codes = x if order is None else b.Gather(x, b.constant(order, I32), axis=-1)
    made = b.matmul_dot(codes, weight, total, zero, **how)
    if points is not None:
        made = b.less_points(made, _sums(x, zero, x.tensor.rank - 1, w.shape[0], b), b.constant(points))
    rw.replace(op, [made])
    return True


def _activations_dot(op: Op, rw: Rewriter, panel: int, lanes: _Lanes) -> bool:
    """`MatMulInteger` of two activations --> `activations_dot`, with panels of `panel` columns."""
    x, y, *zeros = (*op.operands, None, None)[:4]
    if x is None or y is None or isinstance(y, Weight) or not {x.tensor.dtype, y.tensor.dtype} <= {U8, I8}:
        return False
    if any(z is not None and z.tensor.size != 1 for z in zeros):
        return False
    if min(x.tensor.rank, y.tensor.rank) < 2 or x.tensor.dims[:-2] != y.tensor.dims[:-2]:
        return False
    if x.tensor.dims[-1] != y.tensor.dims[-2] or not _is_worth_panels(x, y):
        return False
    known = [int(z.data.reshape(())) if isinstance(z, Weight) else 0 for z in zeros]
    points = [None if isinstance(z, Weight) else z for z in zeros]
    made = rw.builder(op).activations_dot(
        x, y, *points, left=known[0], right=known[1], panel=panel, some=lanes.some, **lanes.how
    )
    rw.replace(op, [made])
    return True


def _is_worth_panels(x: Value, y: Value) -> bool:
    """Whether there are only a few rows, since each reads all panels, and no empty axis."""
    rows, depth, columns = x.tensor.dims[-2], *y.tensor.dims[-2:]
    return all(not isinstance(n, int) or n > most for n, most in ((rows, _LEAST), (depth, 0), (columns, _LEAST - 1)))


def _sums(x: Value, zero: Value | None, axis: int, count: int, b: GraphBuilder) -> Value:
    """The sums of `x - zero` along an axis of extent `count`, which is kept with extent 1."""
    sums = b.ReduceSum(b.Cast(x, to=I32), b.constant([axis], I64), keepdims=1)
    if zero is None:
        return sums
    number = b.Reshape(zero, b.constant(np.zeros(0, np.int64))) if zero.tensor.rank else zero
    point = b.Cast(number, to=I32)
    return b.Sub(sums, b.Mul(point, b.constant(count, I32)))


def rounded_convolution(op: Op, rw: Rewriter) -> bool:
    """`Conv(Cast(x: bf16), w)` with one group and a weight that is exactly bf16, or all bf16 --> `conv_dot`."""
    found = _rounded(op)
    if found is None or op.a.group != 1 or min(found[1].shape[:2]) < _FEW:
        return False
    (x, w), b = found, rw.builder(op)
    attrs = {"auto_pad": op.a.auto_pad, **{key: getattr(op.a, key) or () for key in ("pads", "strides", "dilations")}}
    attrs |= {"kernel_shape": w.shape[2:], "zero": 0, "group": 1}
    made = b.conv_dot(x, b.constant(_in_groups(w, 1, 2)), **attrs)
    bias = op.operands[2] if len(op.operands) > 2 else None
    if isinstance(bias, Weight):
        bias = b.constant(bias.data.reshape(-1, *[1] * (w.ndim - 2)))
    elif bias is not None:
        bias = b.Reshape(bias, b.constant(np.array([-1, *[1] * (w.ndim - 2)], np.int64)))
    return _with_bias(op, made, bias, rw)


def rounded_product(op: Op, rw: Rewriter) -> bool:
    """`MatMul(Cast(x: bf16), w)` or Gemm, with a weight that is exactly bf16, or all bf16 --> `matmul_dot`."""
    found = _rounded(op)
    form = op.matrix_product
    if found is None or found[1].ndim != 2 or form is None or form.left_transposed or form.is_scaled:
        return False
    x, w = found
    w = w.T if form.right_transposed else w
    if w.shape[1] < _LEAST or w.shape[0] == 0 or x.tensor.rank < 2:
        return False
    b = rw.builder(op)
    made = b.matmul_dot(x, b.constant(_in_groups(w, 0, 2)))
    bias = (*op.operands, None)[2]
    return _with_bias(op, made, bias, rw)


def _with_bias(op: Op, made: Value, bias: Value | None, rw: Rewriter) -> bool:
    """Replace a product by sums, plus the corrections added to them."""
    w = op.operands[1]
    b, dtype = rw.builder(op), op.result.tensor.dtype
    if isinstance(bias, Weight) and bias.tensor.dtype != F32:
        bias = b.constant(bias.data, F32)
    if bias is not None:
        made = b.Add(made, bias if bias.tensor.dtype == F32 else b.Cast(bias, to=F32))
    rw.replace(op, [made if dtype == F32 else b.Cast(made, to=dtype)])
    if isinstance(w, Weight):
        rw.module.release_weight(w)
    return True


def _rounded(op: Op) -> tuple[Value, np.ndarray] | None:
    """The operands of a product as bf16, if they are exactly representable."""
    x, w = op.operands[:2]
    if x is None or not isinstance(w, Weight):
        return None
    if x.tensor.dtype == w.tensor.dtype == BF16:
        return x, w.data
    x = is_rounded(x)
    if x is None or w.tensor.dtype != F32:
        return None
    data = narrowed(w.data, f16=False)
    return None if data is None else (x, data)


def _filters(w: np.ndarray, some: int, *, planes: bool) -> np.ndarray:
    """Weights of filters with channels in groups; with `planes` these are innermost, and pairs have 16 bits already."""
    groups = _in_groups(w, 1, some)
    if not planes:
        return groups
    return np.ascontiguousarray(np.moveaxis(groups, 2, -1), np.int16 if some == 2 else None)


def _in_groups(w: np.ndarray, axis: int, some: int) -> np.ndarray:
    """An axis in groups, of four for instance, padded with zeros: `[.., C, ..]` --> `[.., C/4, 4, ..]`."""
    margins = [(0, -n % some if k == axis else 0) for k, n in enumerate(w.shape)]
    return np.ascontiguousarray(np.pad(w, margins).reshape(*w.shape[:axis], -1, some, *w.shape[axis + 1 :]))


BF16_RULES: dict[str, tuple[OpRule, ...]] = {
    "Conv": (rounded_convolution,),
    "MatMul": (rounded_product,),
    "Gemm": (rounded_product,),
}


@dataclass(frozen=True)
class UseByteProducts(Pass):
    """Rewrites integer products as unsigned by signed bytes, four to a lane, with corrections for zero points.

    `sum((x - z) * w)` is `sum(x * w) - z * sum(w)`; the sums of constant weights are constants. VNNI multiplies and
    adds 64 bytes with one instruction: four times the f32 rate. Other x86 processors do so with half as many 16-bit
    integers, to which codes are widened on the way: then lanes hold pairs, not fours; but where any two products of a
    weight fit in 16 bits, as with 7 bits, fours are multiplied as bytes and their pairs summed in 16 bits
    (`narrow`), of a matrix after its rows were paired so that they fit (`fitting_pairs`), and of a convolution of 1x1
    after the channels that it reads were (`paired_channels`). Where they do not, vectors of
    256 bits take two products of a convolution by one multiplication (`crossed_products`). ARM multiplies signed by
    signed bytes (`signed`). If there is an instruction for 32 bf16, operands that are bf16 or were rounded to it are
    handled the same way: twice the f32 rate. With pairs, convolutions of 3x3 take Winograd's method (`winograd_dot`):
    up to 4 times fewer products.

    `%y = ConvInteger(%x, @w : i8[8,16,1,1], @z)` --> `%y = conv_dot(%x, @u : i8[8,4,4,1,1], @total) {zero=3}`
    """

    bf16: bool = False  # pretend that the processor has the instruction
    some: int = 0  # integers per lane; 0 means the target's
    planes: bool = False  # for channels first: only integers, and convolutions with lanes along positions
    winograd: bool = False  # convolutions of 3x3 by Winograd's method, if lanes hold pairs

    name: ClassVar[str] = "use-byte-products"

    def run(self, m: Module, ctx: Context) -> bool:
        if not ctx.machine.has_horizontal_add:
            return False
        rw = Rewriter(m)
        pairs = self.bf16 or ctx.machine.dots_bf16
        rules = integer_rules(ctx.machine, self.some, planes=self.planes, winograd=self.winograd)
        in_pairs = _in_pairs(ctx.machine, self.some) and not self.planes
        changes = rw.apply({"ConvInteger": (paired_channels,)}) if in_pairs else 0
        changes += rw.apply({**rules, **(BF16_RULES if pairs and not self.planes else {})})
        erase_dead(m)
        m.drop_unused_weights()
        return finish(rw, ctx, changes)
