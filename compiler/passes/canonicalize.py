"""Rewrites to one canonical form: no ops that do nothing, no chains of reshapes or transposes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.meaning import expand_composite, static_elements
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops import registry
from occ.compiler.ir.rewriter import Rewriter, Rule
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass, finish


def identity(op: Op, rw: Rewriter) -> bool:
    """`Identity(x)`, `Dropout(x)` --> `x`."""
    source = op.operands[0]
    if source is None or any(r.uses for r in op.results[1:]):
        return False
    if op.name == "Dropout" and len(op.operands) > 2 and _is_true(op.operands[2]):
        return False
    rw.replace(op, [source] * len(op.results))
    return True


def _is_true(value: Value | None) -> bool:
    found = static_elements(value) if value is not None else None
    return found is None or bool(found[0])


def cast_to_same(op: Op, rw: Rewriter) -> bool:
    """`Cast(x: f32) {to=f32}` --> `x`."""
    if op.operands[0] is None or op.operands[0].type != op.result.type:
        return False
    rw.replace(op, [op.operands[0]])
    return True


def unchanged_shape(op: Op, rw: Rewriter) -> bool:
    """A Reshape, Expand, Slice, Concat, Pad, Tile or Transpose that leaves its operand as it is --> the operand."""
    source = op.operands[0]
    if source is None or source.type != op.result.type or not _is_neutral(op):
        return False
    rw.replace(op, [source])
    return True


def _is_neutral(op: Op) -> bool:
    match op.name:
        case "Transpose":
            return tuple(op.attrs.get("perm", ())) == tuple(range(op.result.tensor.rank))
        case "Slice":
            steps = static_elements(op.operands[4]) if len(op.operands) > 4 and op.operands[4] else (1,)
            return steps is not None and all(s == 1 for s in steps)
        case "Pad":
            pads = static_elements(op.operands[1]) if op.operands[1] else None
            return pads is not None and all(p == 0 for p in pads)
        case "Concat":
            return len(op.operands) == 1
        case _:
            return True


def view_of_view(op: Op, rw: Rewriter) -> bool:
    """`Reshape(Unsqueeze(x))` --> `Reshape(x)`: only the last shape of a chain of views counts."""
    source = op.operands[0]
    inner = source.defining_op if source is not None else None
    if inner is None or "view" not in inner.spec.tags or inner.operands[0] is None:
        return False
    return _reshape(op, inner.operands[0], op.result.tensor.dims, rw)


def _reshape(op: Op, source: Value, shape: tuple[Dim, ...], rw: Rewriter) -> bool:
    if source.type == op.result.type:
        rw.replace(op, [source])
        return True
    b = rw.builder(op)
    if all(isinstance(d, int) for d in shape):
        target: Value = b.constant(np.array(shape, np.int64))
    else:
        target = b.dims(values=shape, shape=(len(shape),))
    rw.replace(op, [b.Reshape(source, target, allowzero=1)])
    return True


def transpose_of_transpose(op: Op, rw: Rewriter) -> bool:
    """`Transpose(Transpose(x))` --> one Transpose of the composed permutation."""
    source = op.operands[0]
    inner = source.defining_op if source is not None else None
    if inner is None or inner.name != "Transpose":
        return False
    rank = op.result.tensor.rank
    outer_perm, inner_perm = (_perm(o, rank) for o in (op, inner))
    b = rw.builder(op)
    rw.replace(op, [b.Transpose(inner.operands[0], perm=tuple(inner_perm[k] for k in outer_perm))])
    return True


def transpose_of_ones(op: Op, rw: Rewriter) -> bool:
    """A Transpose that moves only axes of extent 1 --> Reshape, which moves no data."""
    source = op.operands[0]
    if source is None:
        return False
    perm = _perm(op, source.tensor.rank)
    moving = [k for k in perm if source.tensor.dims[k] != 1]
    if moving != sorted(moving):
        return False
    return _reshape(op, source, op.result.tensor.dims, rw)


def _perm(op: Op, rank: int) -> tuple[int, ...]:
    return tuple(k % rank for k in op.attrs.get("perm", tuple(range(rank))[::-1]))


def neutral_operand(op: Op, rw: Rewriter) -> bool:
    """`x * 1`, `x / 1`, `x - 0`, `x ** 1` --> `x`; exact for every value, -0 and NaN included."""
    x, y = op.operands[0], op.operands[1]
    if not isinstance(y, Weight) or x is None or x.type != op.result.type or y.data.dtype.kind not in "fiu":
        return False
    if y.data.size > 4096 or not np.all(y.data == (0 if op.name == "Sub" else 1)):
        return False
    rw.replace(op, [x])
    return True


def neutral_left_operand(op: Op, rw: Rewriter) -> bool:
    """`1 * x` --> `x`."""
    x, y = op.operands[0], op.operands[1]
    if not isinstance(x, Weight) or y is None or y.type != op.result.type or x.data.dtype.kind not in "fiu":
        return False
    if x.data.size > 4096 or not np.all(x.data == 1):
        return False
    rw.replace(op, [y])
    return True


def sum_of_two(op: Op, rw: Rewriter) -> bool:
    """`Sum(x, y)` --> `Add(x, y)`; of one operand, the operand."""
    if len(op.operands) > 2:
        return False
    if len(op.operands) == 1:
        return identity(op, rw)
    rw.replace(op, [rw.builder(op).Add(*op.operands)])
    return True


def expand_legacy(op: Op, rw: Rewriter) -> bool:
    """Stand-ins for the meaning of old operator sets --> today's operators."""
    rw.replace(op, expand_composite(op, rw.builder(op), op.operands))
    return True


_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "legacy.Align")

RULES: dict[str, tuple[Rule, ...]] = {
    "Identity": (identity,),
    "Dropout": (identity,),
    "Cast": (cast_to_same,),
    **dict.fromkeys(_VIEWS, (unchanged_shape, view_of_view)),
    "Expand": (unchanged_shape,),
    "Tile": (unchanged_shape,),
    "Slice": (unchanged_shape,),
    "Concat": (unchanged_shape,),
    "Pad": (unchanged_shape,),
    "Transpose": (unchanged_shape, transpose_of_transpose, transpose_of_ones),
    "Mul": (neutral_operand, neutral_left_operand),
    "Div": (neutral_operand,),
    "Sub": (neutral_operand,),
    "Pow": (neutral_operand,),
    "Sum": (sum_of_two,),
    "CastLike": (expand_legacy,),
}


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Applies the rules of `RULES` until none matches.

    `%a = Identity(%x)  %b = Reshape(%a, [2, 6])  %c = Reshape(%b, [3, 4])` --> `%c = Reshape(%x, [3, 4])`
    """

    name: ClassVar[str] = "canonicalize"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        legacy = {n: (expand_legacy,) for n, s in registry().items() if s.domain == "legacy" and s.composite}
        return finish(rw, ctx, rw.apply(RULES | legacy))
