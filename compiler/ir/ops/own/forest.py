"""Decision tree ensembles, evaluated level by level.

Nodes are in pairs. Node `k` sends a row to `links[k]` if `x[features[k]] <= splits[k]`, else to the node after that;
NaN goes to the latter. A leaf has NaN as its split, and the preceding node as its link, so that a row which has reached
it stays: all rows take the same number of steps, without branches. The trees start at nodes 0, 1, 2, ...
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dim import lower
from occ.compiler.ir.dtype import I32, I64
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.te.expr import Carried, Expr, binary, call, cast, equal, literal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor

_ATTRIBUTES = "trees=int groups=int depth=int how=text features=int missing=bool"


@op("forest", operands=("x", "features", "splits", "links", "weights"), own_attributes=_ATTRIBUTES)
class Forest:
    """A decision tree ensemble: x[n, f] and nodes --> [n, groups * width].

    Each group of `trees` trees adds up weights[nodes, width] of leaves, or takes the minimum or maximum (`how`). The
    number of nodes is a power of two.

    If `missing` values may go to the first node of a pair, feature `2*f` is feature `f`, and the one after that the
    same with -inf instead of NaN. `features` is the required number.
    """

    def body(t, x, features, splits, links, weights, *, a):
        rows, (count, width) = x.shape[0], weights.shape
        if lower(x.shape[1] - a.features) < 0:
            t.check([], lambda: wrap(a.features) <= wrap(x.shape[1]), "a node tests a feature that does not exist")
        if a.missing:
            x = _with_missing(t, x)
        last = literal(count - 1, I32)  # clamps positions, at no cost

        def position(node: Expr) -> Expr:
            return cast(I64, binary("and", node, last))

        def step(n: Expr, g: Expr, k: Expr, level: Expr) -> Expr:
            root = cast(I32, g * a.trees + k)
            at = position(where(equal(level, 0), root, Carried(I32)))
            goes = x[n, cast(I64, features[at])] <= splits[at]
            return links[at] + where(goes, literal(0, I32), literal(1, I32))

        leaves = t.reduce("settle", (rows, a.groups, a.trees), [a.depth], step, name="leaves")

        def given(n: Expr, g: Expr, w: Expr, k: Expr) -> Expr:
            weight = weights[position(leaves[n, g, k]), w]
            return Carried(weight.dtype) + weight if a.how == "sum" else weight

        # Sums in the order of the trees, as elsewhere: if classes tie, the order decides.
        kind = "fold" if a.how == "sum" else a.how
        return t.reduce(kind, (rows, a.groups, width), [a.trees], given, name="total")


def _with_missing(t: Builder, x: Tensor) -> Tensor:
    """Each feature twice, the second time with -inf for NaN."""
    least = literal(float("-inf"), x.dtype)

    def element(n: Expr, k: Expr) -> Expr:
        value = x[n, k // 2]
        return where(equal(k % 2, 1) & call("isnan", value), least, value)

    return t.map((x.shape[0], x.shape[1] * 2), element, name="twice")


ALL = (Forest,)
