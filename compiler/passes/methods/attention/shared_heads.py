"""Grouped-query attention: heads of keys and values shared by several heads of queries."""

from __future__ import annotations

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import exact_quotient
from occ.compiler.ir.dtype import F16, F32
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType

_SOFTMAX = ("Softmax", "attention_softmax")
_READ = (
    "repeat_heads",
    "first_keys",
    "cache_values",
    "head_values",
)  # what attention kernels compute while reading keys and values
_MOST_MAPS = 8  # elementwise ops between the scores and their softmax


def ungroup(result: Op, rw: Rewriter) -> None:
    """Turn attention on query heads merged into rows of a group into attention on repeated keys and values.

    `%p = softmax(..(Reshape(MatMul(Reshape(%q), %k))))  %y = Reshape(MatMul(Reshape(%p), %v))` -->
    `%p = softmax(..(MatMul(%q, repeat_heads(%k))))  %y = MatMul(%p, repeat_heads(%v))`
    """
    product = _grouped(result)
    p = None if product is None else product[0].defining_op
    if p is None or p.name not in _SOFTMAX:
        return
    x, steps = p.operands[0], 0
    while x is not None and (maker := x.defining_op) is not None and len(x.uses) == 1 and steps <= _MOST_MAPS:
        if _grouped(maker) is not None:
            _replace(result, rw)
            _replace(maker, rw)
            return
        same = (v for v in maker.inputs if v.defining_op is not None and v.type == maker.results[0].type)
        x, steps = next(same, None), steps + 1


def _grouped(result: Op) -> tuple[Value, Value] | None:
    """The operands of the product that `Reshape(MatMul(Reshape(x), y))` computes, heads of `x` in groups; or None."""
    made = result.operands[0].defining_op if result.name == "Reshape" and result.operands[0] is not None else None
    if made is None or made.name != "MatMul" or len(made.result.uses) != 1:
        return None
    left, y = made.operands
    inner = left.defining_op if left is not None else None
    x = inner.operands[0] if inner is not None and inner.name == "Reshape" else None
    if (
        x is None
        or y is None
        or left is None
        or x.tensor.rank != 4
        or y.tensor.rank != 4
        or x.tensor.dtype not in (F32, F16)
    ):
        return None
    (n, heads, rows, depth), (_, groups, _, width) = x.tensor.dims, y.tensor.dims
    if not isinstance(heads, int) or not isinstance(groups, int) or heads % groups:
        return None
    fits = left.tensor.dims == (n, groups, rows * (heads // groups), depth)
    return (x, y) if fits and result.result.tensor.dims == (n, heads, rows, width) else None


def _replace(result: Op, rw: Rewriter) -> None:
    found = _grouped(result)
    assert found is not None
    x, y = found
    b, group = rw.builder(result), exact_quotient(x.tensor.dims[1], y.tensor.dims[1])
    maker = y.defining_op
    if (
        maker is not None
        and maker.name == "Transpose"
        and maker.a.perm == (0, 1, 3, 2)
        and maker.operands[0] is not None
    ):
        y = b.Transpose(b.repeat_heads(maker.operands[0], group=group), perm=(0, 1, 3, 2))
    else:
        y = b.repeat_heads(y, group=group)
    rw.replace(result, [b.MatMul(x, y)])


def served(v: Value, b: GraphBuilder) -> tuple[list[Op], Value]:
    """The keys or values behind a chain of ops that an attention kernel can absorb, and that chain."""
    found = x = _repeating(v, b)
    ops: list[Op] = []
    inside = 0
    while (maker := x.defining_op) is not None and len(x.uses) <= 1 and maker.name in (*_READ, "Transpose"):
        ops.append(maker)
        inside = len(ops) if maker.name in _READ else inside
        if (source := maker.operands[0]) is None:
            break
        x = source
    return ops[:inside][::-1], found


def _repeating(v: Value, b: GraphBuilder) -> Value:
    """Keys or values, each head of which serves several query heads, by `repeat_heads`.

    Exporters repeat heads in memory: `[N,G,T,D]`, Unsqueeze, Expand to `[N,G,g,T,D]`, Reshape to `[N,G*g,T,D]`; leading
    axes may be merged before or after, and the last two swapped after it.
    """
    x, turned = v, False
    while (maker := x.defining_op) is not None and len(x.uses) == 1 and (source := maker.operands[0]) is not None:
        rank = source.tensor.rank
        if maker.name == "Expand":
            return _repeated(v, source, x, b, turned=turned)
        if maker.name == "Transpose" and maker.a.perm == (*range(rank - 2), rank - 1, rank - 2):
            turned = not turned
        elif maker.name != "Reshape" or source.tensor.dims[-2:] != x.tensor.dims[-2:]:
            break
        x = source
    return v


def _repeated(v: Value, source: Value, wide: Value, b: GraphBuilder, *, turned: bool) -> Value:
    """`v`, which is the Expand `wide` of `source` with leading axes merged, and possibly the last two swapped."""
    maker, dims = source.defining_op, wide.tensor.dims
    if maker is None or maker.name not in ("Unsqueeze", "Reshape") or len(dims) != 5 or v.tensor.rank != 4:
        return v
    x, (n, heads, group, *rest) = maker.operands[0], dims
    expected = TensorType(wide.tensor.dtype, (n, heads, *rest))
    fits = source.tensor.dims == (n, heads, 1, *rest) and x is not None and x.type == expected
    if not fits or not isinstance(heads, int) or not isinstance(group, int) or v.tensor.dims[:2] != (n, heads * group):
        return v
    made = b.repeat_heads(x, group=group)
    return b.Transpose(made, perm=(0, 1, 3, 2)) if turned else made
