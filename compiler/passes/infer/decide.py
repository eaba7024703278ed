"""Values that decide shapes: where one is computed at run time, a step of the plan makes sizes of it.

Exporters slice by the number of an iteration, make ranges up to a length that is counted, and reshape to what an input says.
What is known of such an op is written as symbols, which `sizes` binds when the values are there; the op itself, and all that
follows, is then an ordinary kernel over symbolic extents. `ir/ops/own/decided.py` has the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim, Sym, ceildiv, minimum, product, substitute
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.meaning import Elements
from occ.compiler.ir.module import DATA_LABEL, Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops.own.decided import DECIDED, LARGEST, is_found
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.shape import DATA_SYMBOL, normalize_axes
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value


class Known(Protocol):
    """What an inference has found."""

    def elements(self, value: Value) -> Elements | None: ...


def decide(m: Module, known: Known) -> bool:
    """Give sizes to the ops whose shapes hang on values of a run; returns whether there were any. Every value has a type.

    `%y = Slice(%x, %b, %e)` --> `%p = slice_places(%x, %b, %e)  sizes(%p) {finds=[dim<_u0>, dim<_u1>]}  %y = part(%x, ...)`
    """
    rw, made = Rewriter(m), False
    for func in m.funcs.values():
        for op in func.body.body:
            rule = _RULES.get(op.name)
            if rule is None or not _waits(op, known):
                continue
            result = None
            with suppress(Invalid):  # in a branch that does not fit, which is an error only where it is taken
                result = rule(_Decision(m, known, op, rw))
            if result is not None:
                rw.replace(op, [result])
                made = True
    return made


def _waits(op: Op, known: Known) -> bool:
    """Whether an op has operands of known ranks, and looks at the elements of one that is computed."""
    if not all(isinstance(v.type, TensorType) and v.type.shape is not None for v in op.inputs):
        return False
    static = [v for k, v in enumerate(op.operands) if v is not None and op.spec.operand_name(k) in op.spec.static]
    return any(None in (known.elements(v) or (None,)) for v in static if v.tensor.size != 0)


class _Decision:
    """An op that waits for values.

    Attributes:
        b: puts ops before it.
    """

    def __init__(self, m: Module, known: Known, op: Op, rw: Rewriter) -> None:
        self.m, self.known, self.op, self.b = m, known, op, rw.builder(op)
        self._renamed = rw.renamed  # sizes of ops that are decided by now have other names than the inference knows

    def operand(self, k: int) -> Value | None:
        return self.op.operands[k] if k < len(self.op.operands) else None

    def given(self, k: int) -> Value:
        value = self.operand(k)
        assert value is not None, f"operand {k} of {self.op.name} is not optional"
        return value

    def elements(self, k: int) -> Sequence[Dim | float | None] | None:
        """What is known of the elements of a vector, None for each that is not; None if not even their number is."""
        value = self.given(k)
        n = value.tensor.shape[0] if value.tensor.shape and value.tensor.rank == 1 else None
        found = (self.known.elements(value) or (None,) * n) if isinstance(n, int) else None
        return found and [substitute(x, self._renamed) if isinstance(x, Sym) else x for x in found]

    def ints(self, k: int, otherwise: Sequence[int]) -> Sequence[int] | None:
        """The elements of an operand that is all constant; `otherwise` if it is left out."""
        value = self.operand(k)
        found = otherwise if value is None else self.known.elements(value)
        ints = [x for x in found or () if isinstance(x, int)]
        return ints if found is not None and len(ints) == len(found) else None

    def symbol(self) -> Dim:
        return self.m.fresh_symbol(f"{DATA_SYMBOL}0", label=DATA_LABEL)

    def sizes(self, vector: Value, finds: Sequence[Dim]) -> Value:
        """Bind symbols to the elements of a vector, which the returned value has as sizes."""
        self.b.op(DECIDED, vector, finds=tuple(finds))
        return self.b.op("dims", values=tuple(finds), shape=(len(finds),))


def _slice(d: _Decision) -> Value | None:
    begin, end = d.elements(1), d.elements(2)
    if begin is None or end is None or len(begin) != len(end):
        return None
    on, by = d.ints(3, range(len(begin))), d.ints(4, [1] * len(begin))
    if on is None or by is None or not len(on) == len(by) == len(begin) or 0 in by:
        return None
    on = normalize_axes(on, d.given(0).tensor.rank, "Slice")
    axes, strides = tuple(on), tuple(by)
    places = d.b.op("slice_places", d.given(0), d.given(1), d.given(2), axes=axes, strides=strides)
    finds = [x for b, s in zip(begin, by, strict=True) for x in (0 if b == 0 and s > 0 else d.symbol(), d.symbol())]
    return d.b.op("part", d.given(0), d.sizes(places, finds), axes=axes, strides=strides)


def _range(d: _Decision) -> Value | None:
    start, limit, delta = (d.given(k) for k in range(3))
    if any(v.tensor.size != 1 for v in (start, limit, delta)):
        return None
    count = d.b.op("range_count", start, limit, delta)
    return d.b.op("ramp", start, delta, d.sizes(count, [d.symbol()]))


def _expand(d: _Decision) -> Value | None:
    asked, x = d.elements(1), d.given(0)
    if asked is None:
        return None
    rank = max(x.tensor.rank, len(asked))
    own = (*(1,) * (rank - x.tensor.rank), *x.tensor.dims)
    finds = [_spread(d, n, s) for n, s in zip(own, (*(1,) * (rank - len(asked)), *asked), strict=True)]
    return d.b.op("spread", x, d.sizes(d.b.op("expanded_shape", x, d.given(1)), finds))


def _spread(d: _Decision, n: Dim, asked: Dim | float | None) -> Dim:
    """The extent of an axis that is expanded, where it is known."""
    if isinstance(n, int) and n != 1:
        return n
    return asked if n == 1 and isinstance(asked, (int, Sym)) else d.symbol()


def _reshape(d: _Decision) -> Value | None:
    asked = d.elements(1)
    if asked is None:
        return None
    finds = [n if isinstance(n, int) and n > 0 else d.symbol() for n in asked]
    shape = d.b.op("reshaped_shape", d.given(0), d.given(1), allowzero=int(bool(d.op.a.allowzero)))
    return d.b.Reshape(d.given(0), d.sizes(shape, finds), allowzero=1)


def _as_given(d: _Decision, k: int) -> Value | None:
    """The elements of operand `k` as sizes."""
    asked = d.elements(k)
    if asked is None:
        return None
    vector = d.given(k)
    if vector.tensor.dtype != I64:
        vector = d.b.Cast(vector, to=I64)
    return d.sizes(vector, [n if isinstance(n, (int, Sym)) else d.symbol() for n in asked])


def _tile(d: _Decision) -> Value | None:
    times = _as_given(d, 1)
    return None if times is None else d.b.Tile(d.given(0), times)


def _constant_of_shape(d: _Decision) -> Value | None:
    shape = _as_given(d, 0)
    return None if shape is None else d.b.ConstantOfShape(shape, value=d.op.a.value)


_RULES: Mapping[str, Callable[[_Decision], Value | None]] = {
    "Slice": _slice, "Range": _range, "Expand": _expand, "Reshape": _reshape, "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
}  # fmt: skip


def tell_bounds(m: Module) -> None:
    """Note at each `sizes` the most that its symbols can be, for which native code has memory."""
    most: dict[str, Dim] = {}
    for op in m.walk():
        for d, bound in _bounds(op):
            if is_found(d):
                most[str(d)] = minimum(most[str(d)], bound) if str(d) in most else bound
    for op in m.walk():
        if op.name == DECIDED:
            op.attrs["most"] = tuple(most.get(str(d), LARGEST) for d in op.attrs["finds"])


def _bounds(op: Op) -> list[tuple[Dim, Dim]]:
    """Sizes that an op reads, each with the most that it can be."""
    if op.name not in ("part", "Reshape") or op.operands[1] is None:
        return []
    maker, x = op.operands[1].defining_op, op.inputs[0].tensor
    if maker is None or maker.name != "dims" or x.shape is None:
        return []
    found = maker.attrs["values"]
    if op.name == "Reshape":
        return [(d, product(x.shape)) for d in found]
    bounds: list[tuple[Dim, Dim]] = []
    for k, (axis, step) in enumerate(zip(op.attrs["axes"], op.attrs["strides"], strict=True)):
        bounds += [(found[2 * k], x.shape[axis]), (found[2 * k + 1], ceildiv(x.shape[axis], abs(step)))]
    return bounds
