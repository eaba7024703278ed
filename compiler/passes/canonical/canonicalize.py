"""Canonicalization: removes ops without effect and chains of reshapes or transposes."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir import dim
from occ.compiler.ir.build_te import static_elements
from occ.compiler.ir.builder import expand_composite
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import STR
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.ops.attention import reshape
from occ.compiler.ir.rewriter import OpRule, Rewriter
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.canonical.canonical_rules import ALL
from occ.compiler.passes.canonical.scan_axes import scan_first_axes
from occ.compiler.passes.rules.replace import PatternRule
from occ.runtime.dataclass import dataclass


def dropout(op: Op, rw: Rewriter) -> bool:
    """`Dropout(x)` --> `x`."""
    source = op.operands[0]
    if source is None or any(r.uses for r in op.results[1:]):
        return False
    if len(op.operands) > 2 and _is_true(op.operands[2]):
        return False
    rw.replace(op, [source] * len(op.results))
    return True


def _is_true(value: Value | None) -> bool:
    found = static_elements(value) if value is not None else None
    return found is None or bool(found[0])


def unchanged_shape(op: Op, rw: Rewriter) -> bool:
    """A Reshape, Expand, Slice, Concat, Pad, Tile or Transpose that has no effect --> the operand."""
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
    return _is_known(op, inner.operands[0]) and _reshape(op, inner.operands[0], op.result.tensor.dims, rw)


def _is_known(op: Op, source: Value) -> bool:
    """Whether a result's extents are known without the op itself and the view that it reads.

    They may depend on operand data, such as the axes of an Unsqueeze.
    """
    given = dim.symbols(*((source.type.shape or ()) if isinstance(source.type, TensorType) else ()))
    return all(set(dim.symbols(d)) <= set(given) for d in op.result.tensor.dims if depends_on_data(d))


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


def tile_by_sizes(op: Op, rw: Rewriter) -> bool:
    """`Tile(x: f32[n], [r])` --> `Reshape(Expand(Reshape(x, [1, n]), [r, n]), [r*n])` where r is a size of the run.

    Rows are copied, without a remainder for each element. Of a known number of copies, each is a part of the loops.
    """
    x, repeats = op.inputs
    times = static_elements(repeats)
    if times is None or all(isinstance(r, int) for r in times) or x.tensor.dtype == STR:
        return False
    pairs = list(zip(x.tensor.dims, times, strict=True))
    own = [d for n, r in pairs for d in ((n,) if 1 in (n, r) else (1, n))]
    copies = [d for n, r in pairs for d in ((n if r == 1 else r,) if 1 in (n, r) else (r, n))]
    b = rw.builder(op)
    spread = b.Expand(reshape(b, x, own), b.dims(values=tuple(copies), shape=(len(copies),)))
    rw.replace(op, [reshape(b, spread, op.result.tensor.dims)])
    return True


def expand_legacy(op: Op, rw: Rewriter) -> bool:
    """Deprecated operators that stand for today's ones --> today's operators."""
    rw.replace(op, expand_composite(op, rw.builder(op), op.operands))
    return True


_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "legacy.Align")

FUNCTIONS: dict[str, tuple[OpRule, ...]] = {
    "Dropout": (dropout,),
    **dict.fromkeys(_VIEWS, (unchanged_shape, view_of_view)),
    **dict.fromkeys(("Expand", "Slice", "Concat", "Pad"), (unchanged_shape,)),
    "Tile": (unchanged_shape, tile_by_sizes),
    "Transpose": (unchanged_shape, transpose_of_ones),
    "CastLike": (expand_legacy,),
    "Scan": (scan_first_axes,),
}


def table() -> dict[str, list[OpRule]]:
    """All rules by the operator at which they start: the functions, then the patterns of canonical_rules."""
    made: dict[str, list[OpRule]] = {name: list(rules) for name, rules in FUNCTIONS.items()}
    for name, spec in builtin().items():
        if spec.domain == "legacy" and spec.composite:
            made[name] = [expand_legacy]
    for rule in ALL:
        for root in rule.roots:
            made.setdefault(root, []).append(PatternRule(rule))
    return made


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Applies the compiler's own rewrites until none matches.

    `%a = Identity(%x)  %b = Reshape(%a, [2, 6])  %c = Reshape(%b, [3, 4])` --> `%c = Reshape(%x, [3, 4])`
    """

    name: ClassVar[str] = "canonicalize"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        return finish(rw, ctx, rw.apply(table()))
