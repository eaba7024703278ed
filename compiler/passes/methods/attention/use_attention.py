"""Fuses attention into one kernel, with no score matrix in memory."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.dtype import F16, F32
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.own.attend import PLAIN, ZERO_EMPTY, ZERO_NAN
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.fuse.fuse import MAP, FusionFacts
from occ.compiler.passes.fuse.outline import outline
from occ.compiler.passes.methods.attention.shared_heads import served, ungroup
from occ.runtime.dataclass import dataclass

KIND = "attention"
_KEYS_OF_ONE = 64  # minimum number of keys for which attention of a single query is worth a kernel
_MOVES = ("Transpose", "repeat_heads", "Unsqueeze", "Expand", "Reshape")  # ops that only move elements
_MOST_MAPS = 8  # elementwise ops between the scores and their softmax


@dataclass(frozen=True)
class UseAttention(Pass):
    """Groups MatMul, elementwise ops, Softmax, MatMul into one `fuse` region with the ops `attend_scores` and `attend`.

    A kernel then processes some rows of one head at a time, and their scores stay in cache. Constant factors of the
    queries and keys become the `scale` of the scores, and grouped-query heads are read in place. A single query with
    few keys is left alone: it is bound by memory. f16 values are widened as they are read: the scores are rounded to
    f16, as MatMul rounds them, and their softmax is not.

    `%s = MatMul(%q, %k)  %p = Softmax(%s)  %y = MatMul(%p, %v)` -->
    `%y = fuse(%q, %k, %v) {kind="attention"} do (..) { %s = attend_scores(..)  %r = attend(%s, ..)  yield %r }`
    """

    name: ClassVar[str] = "use-attention"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        made = 0
        for func in m.funcs.values():
            for op in [op for op in func.body.body if op.name == "Reshape"]:
                ungroup(op, rw)
        erase_dead(m)
        for func in m.funcs.values():
            for op in list(func.body.body):
                if op.name == "MatMul" and op.parent is not None and (found := _match(op)) is not None:
                    _rewrite(found, rw)
                    made += 1
        erase_dead(m)
        m.drop_unused_weights()
        rw.hits["use-attention"] += made
        return finish(rw, ctx, made)


@dataclass(frozen=True)
class _Match:
    """One attention.

    Attributes:
        scores, product: the two MatMuls.
        maps: elementwise ops between, in order.
        behind: softmax and its ops, last first.
        rows: the value of rows without a softmax.
    """

    scores: Op
    maps: tuple[Op, ...]
    behind: tuple[Op, ...]
    product: Op
    rows: str


def _match(product: Op) -> _Match | None:
    p, v = product.operands
    if p is None or v is None or not _matrices(p, v) or not isinstance(v.tensor.dims[-1], int) or v.tensor.dims[-1] < 2:
        return None
    softmax = _softmax(p)
    if softmax is None:
        return None
    *behind, last = softmax
    rows = ZERO_NAN if behind else ZERO_EMPTY if last.name == "attention_softmax" else PLAIN
    x = last.operands[0]
    chain = None if x is None else _chain(x, _MOST_MAPS)
    if chain is None:
        return None
    scores, *maps = chain
    q, k = scores.operands
    if q is None or k is None or not _matrices(q, k) or not isinstance(q.tensor.dims[-1], int) or q.tensor.dims[-1] < 2:
        return None
    queries, keys = scores.result.tensor.dims[-2:]
    if 0 in (queries, keys) or keys == 1 or (queries == 1 and isinstance(keys, int) and keys < _KEYS_OF_ONE):
        return None
    return _Match(scores, tuple(maps), tuple(softmax), product, rows)


def _matrices(a: Value, b: Value) -> bool:
    """Whether both are stacks of matrices in f32 or f16, equally many, with nothing to broadcast."""
    if any(v.tensor.shape is None or v.tensor.rank < 2 or v.tensor.dtype not in (F32, F16) for v in (a, b)):
        return False
    return a.tensor.dims[:-2] == b.tensor.dims[:-2]


def _softmax(p: Value) -> list[Op] | None:
    """The ops that compute `p` from the scores, last first, if their results have no other readers."""
    maker = p.defining_op
    if maker is None or len(p.uses) != 1:
        return None
    if maker.name == "Where":  # Where(IsNaN(p), 0, p)
        test, zero, inner = maker.operands
        isnan = None if test is None else test.defining_op
        if isnan is None or isnan.name != "IsNaN" or inner is None or isnan.operands[0] is not inner:
            return None
        if (
            not (isinstance(zero, Weight) and zero.data.size == 1 and not zero.data.any())
            or len(isnan.result.uses) != 1
        ):
            return None
        softmax = inner.defining_op
        alone = set(inner.users) == {maker, isnan}
        return [maker, isnan, softmax] if softmax is not None and alone and _is_softmax(softmax) else None
    return [maker] if _is_softmax(maker) else None


def _is_softmax(op: Op) -> bool:
    if op.name == "attention_softmax":
        return True
    return op.name == "Softmax" and op.a.axis in (-1, op.result.tensor.rank - 1)


def _chain(x: Value, most: int) -> list[Op] | None:
    """The MatMul that `x` comes from and the elementwise ops after it, in order.

    Each is read only by the next one.
    """
    maker = x.defining_op
    if maker is None or len(x.uses) != 1:
        return None
    if maker.name == "MatMul":
        return [maker]
    if most == 0 or maker.regions or len(maker.results) != 1:
        return None
    for v in dict.fromkeys(maker.inputs):
        if not isinstance(v, Weight) and v.type == x.type and (rest := _chain(v, most - 1)) is not None:
            facts = FusionFacts.of(maker)
            return [*rest, maker] if facts.kind == MAP and v in facts.pointwise else None
    return None


def _unscaled(v: Value, rw: Rewriter) -> tuple[Value, float]:
    """A value without its constant factor, and that factor.

    Also if heads are repeated or axes swapped after the multiplication.
    """
    x, moved = v, None
    while (maker := x.defining_op) is not None and len(x.uses) == 1 and maker.name in _MOVES and maker.operands[0]:
        x, moved = maker.operands[0], maker
    if maker is None or maker.name != "Mul" or len(x.uses) != 1:
        return v, 1.0
    for y, c in (maker.operands, maker.operands[::-1]):
        single = isinstance(c, Weight) and c.data.size == 1 and np.isfinite(c.data).all()
        if single and y is not None and not isinstance(y, Weight) and y.type == x.type:
            assert isinstance(c, Weight)
            if moved is not None:
                rw.replace_operand(moved, 0, y)
                rw.erase(maker)
            return (y if moved is None else v), float(c.data.reshape(()))
    return v, 1.0


def _rewrite(found: _Match, rw: Rewriter) -> None:
    q, k = found.scores.operands
    v = found.product.operands[1]
    assert q is not None
    assert k is not None
    assert v is not None
    (q, by_q), (k, by_k) = _unscaled(q, rw), _unscaled(k, rw)
    (keys, k), (values, v) = served(k, rw.builder(found.scores)), served(v, rw.builder(found.product))
    scores = rw.builder(found.scores).attend_scores(q, k, scale=by_q * by_k)
    rw.replace(found.scores, [scores])
    x = found.behind[-1].operands[0]
    made = rw.builder(found.product).attend(x, v, rows=found.rows)
    rw.replace(found.product, [made])
    for op in found.behind:
        rw.erase(op)
    outline([*keys, *values, scores.defining_op, *found.maps, made.defining_op], rw, kind=KIND)
