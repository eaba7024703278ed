"""NGramRepeatBlock of com.microsoft, which masks logits in text generation."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import math
from functools import reduce
from operator import and_

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import maximum
from occ.compiler.ir.dtype import BOOL, I64
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_dims
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, where, wrap


@op(f"{DOMAIN}.NGramRepeatBlock", signature=FormalSignature.of("input_ids scores", "scores_out", ngram_size=None))
class NGramRepeatBlock:
    """Scores `[n, words]`, with -inf for words that would repeat an n-gram of `input_ids` `[n, length]`."""

    def body(t, ids, scores, *, a):
        size = a.ngram_size
        if not size or size < 1 or (ids.rank, scores.rank) != (2, 2):
            raise Invalid(f"`NGramRepeatBlock` of {ids.type} and {scores.type} with ngram_size={size}", code="OCC0107")
        equal_dims(ids.shape[0], scores.shape[0], "`NGramRepeatBlock`: the rows of words and of scores")
        n, length, words = *ids.shape, scores.shape[1]
        t.check(
            ids.shape,
            lambda i, j: (ids[i, j] >= 0) & (ids[i, j] < wrap(words)),
            "`NGramRepeatBlock` has a word outside of the scores",
        )
        starts = maximum(length - size + 1, 0)
        low, high = (literal(v, scores.dtype) for v in (-math.inf, math.inf))

        def repeats(i: Expr, k: Expr) -> Expr:
            same = [equal(ids[i, k + j], ids[i, wrap(length - size + 1 + j)]) for j in range(size - 1)]
            return reduce(and_, same, literal(True, BOOL))

        def blocked(i: Expr, k: Expr) -> Expr:
            return where(repeats(i, k), low, high)

        return t.scatter(
            scores.shape, lambda *i: scores[i], (n, starts), lambda i, k: (i, cast(I64, ids[i, k + (size - 1)])),
            blocked,
            combine="min",
        )  # fmt: skip


ALL = (NGramRepeatBlock,)
