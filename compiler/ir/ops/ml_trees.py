"""Tree ensembles of ai.onnx.ml, as composites of the op `forest`."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.ml_scores import POST_TRANSFORMS, best, columns, labelled, rows, single, transformed
from occ.compiler.ir.trees import LEAF, MEMBER, MODES, Packed, Trees, pack

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")  # in the order of TreeEnsemble's numbers
_REDUCE = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}

# Names of the attributes for nodes and leaves in a file.
_NODES = (
    "nodes_treeids", "nodes_nodeids", "nodes_modes", "nodes_truenodeids", "nodes_falsenodeids", "nodes_featureids",
    "nodes_values", "nodes_values_as_tensor", "nodes_missing_value_tracks_true",
)  # fmt: skip
_LINKED = (
    "nodes_featureids", "nodes_modes", "nodes_splits", "nodes_truenodeids", "nodes_trueleafs", "nodes_falsenodeids",
    "nodes_falseleafs", "nodes_missing_value_tracks_true", "tree_roots", "leaf_targetids", "leaf_weights",
    "membership_values",
)  # fmt: skip


def _once(a: SimpleNamespace, names: Sequence[str], *how: object) -> Packed:
    """The packed trees of some attributes. Inference and expansion both need them."""
    given = ((n, getattr(a, n, None)) for n in names)
    return _packed(tuple((n, _Array(v) if isinstance(v, np.ndarray) else v) for n, v in given), *how)


class _Array:
    """An array that compares by its bytes."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self._key = data, (data.dtype.str, data.shape, data.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Array) and self._key == other._key


@lru_cache(maxsize=4)
def _packed(given: tuple[tuple[str, object], ...], leaf: str, dtype: np.dtype, targets: int, how: str) -> Packed:
    a = SimpleNamespace(**{n: v.data if isinstance(v, _Array) else v for n, v in given})
    return pack(_listed(a, leaf) if leaf else _linked(a), dtype, targets, how)


def _numbers(given: Sequence[int] | None, length: int, name: str) -> np.ndarray:
    made = np.zeros(length, np.int64) if given is None else np.asarray(given, np.int64)
    if len(made) != length:
        raise Invalid(f"`{name}` has {len(made)} elements, not {length}", code="OCC0107")
    return made


def _column(a: SimpleNamespace, name: str, length: int) -> np.ndarray:
    """A floating-point attribute, f32, or a tensor."""
    given = getattr(a, f"{name}_as_tensor", None)
    given = getattr(a, name) if given is None else given
    made = np.zeros(length, np.float32) if given is None else np.asarray(given)
    made = made if made.dtype.kind == "f" and isinstance(given, np.ndarray) else made.astype(np.float32)
    if len(made) != length:
        raise Invalid(f"`{name}` has {len(made)} elements, not {length}", code="OCC0107")
    return made


class _Places:
    """Row indices of tree nodes, by (tree, number); the last one among duplicates.

    Without a Python object per node.
    """

    def __init__(self, tree: np.ndarray, number: np.ndarray) -> None:
        (self._trees, a), (self._numbers, b) = (np.unique(v, return_inverse=True) for v in (tree, number))
        keys = a * len(self._numbers) + b
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def of(self, tree: np.ndarray, number: np.ndarray) -> np.ndarray:
        """The indices of some nodes.

        Raises:
            Invalid: there is no such node.
        """
        (a, tree_is_there), (b, number_is_there) = _ranks(self._trees, tree), _ranks(self._numbers, number)
        keys = a * len(self._numbers) + b
        at = np.maximum(np.searchsorted(self._keys, keys, side="right") - 1, 0)
        found = tree_is_there & number_is_there & (self._keys[at] == keys)
        if not found.all():
            k = int(np.argmin(found))
            raise Invalid(f"there is no node {number[k]} in tree {tree[k]}", code="OCC0107")
        return self._order[at]


def _ranks(known: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of values in a sorted list, and whether they are present."""
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return at, known[at] == values


def _listed(a: SimpleNamespace, leaf: str) -> Trees:
    """The trees of TreeEnsembleClassifier and TreeEnsembleRegressor; `leaf` is `class` or `target`."""
    n = len(a.nodes_treeids or ())
    tree, number = (_numbers(getattr(a, name), n, name) for name in ("nodes_treeids", "nodes_nodeids"))
    if len(a.nodes_modes or ()) != n or not n:
        raise Invalid(f"`nodes_modes` has {len(a.nodes_modes or ())} elements, and there are {n} nodes", code="OCC0107")
    if unknown := set(a.nodes_modes) - set(MODES):
        raise Invalid(f"`nodes_modes` has {min(unknown)!r}", code="OCC0107", note=f"one of {', '.join(MODES)}")
    of_mode = {m: k for k, m in enumerate(MODES)}
    mode = np.fromiter(map(of_mode.__getitem__, a.nodes_modes), np.int8, n)
    places = _Places(tree, number)
    inner = np.flatnonzero(mode != LEAF)
    sides = [np.zeros(n, np.int64), np.zeros(n, np.int64)]
    for side, name in zip(sides, ("nodes_truenodeids", "nodes_falsenodeids"), strict=True):
        side[inner] = places.of(tree[inner], _numbers(getattr(a, name), n, name)[inner])
    ids = getattr(a, f"{leaf}_ids") or ()
    trees, nodes = (_numbers(getattr(a, f"{leaf}_{k}"), len(ids), f"{leaf}_{k}") for k in ("treeids", "nodeids"))
    _, first = np.unique(tree, return_index=True)
    return Trees(
        mode, _numbers(a.nodes_featureids, n, "nodes_featureids"), _column(a, "nodes_values", n), *sides,
        _numbers(a.nodes_missing_value_tracks_true, n, "nodes_missing_value_tracks_true") != 0, first,
        places.of(trees, nodes), np.asarray(ids, np.int64), _column(a, f"{leaf}_weights", len(ids)),
    )  # fmt: skip


def _linked(a: SimpleNamespace) -> Trees:
    """The trees of TreeEnsemble: inner nodes first, leaves after them."""
    n, leaves = len(a.nodes_featureids), len(a.leaf_targetids)
    modes = np.asarray(a.nodes_modes).astype(np.int8)
    if len(modes) != n or ((modes < 0) | (modes >= LEAF)).any():
        raise Invalid(f"`nodes_modes` has no known mode for each of the {n} nodes", code="OCC0107")

    def follow(side: str) -> np.ndarray:
        is_leaf = _numbers(getattr(a, f"nodes_{side}leafs"), n, f"nodes_{side}leafs") != 0
        ids = _numbers(getattr(a, f"nodes_{side}nodeids"), n, f"nodes_{side}nodeids")
        if ((ids < 0) | (ids >= np.where(is_leaf, leaves, n))).any():
            raise Invalid(f"`nodes_{side}nodeids` names a node that does not exist", code="OCC0107")
        return wide(np.where(is_leaf, ids + n, ids))

    def wide(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.zeros(leaves, x.dtype)])

    roots = np.asarray(a.tree_roots, np.int64)
    if roots.size and not 0 <= roots.min() <= roots.max() < n + leaves:
        raise Invalid("`tree_roots` names a node that does not exist", code="OCC0107")
    splits = np.asarray(a.nodes_splits)
    missing = _numbers(a.nodes_missing_value_tracks_true, n, "nodes_missing_value_tracks_true") != 0
    return Trees(
        np.concatenate([modes, np.full(leaves, LEAF, np.int8)]),
        wide(_numbers(a.nodes_featureids, n, "nodes_featureids")), wide(splits), follow("true"), follow("false"),
        wide(missing), roots, n + np.arange(leaves), np.asarray(a.leaf_targetids, np.int64),
        np.asarray(a.leaf_weights), _members(a, np.flatnonzero(modes == MEMBER)),
    )  # fmt: skip


def _members(a: SimpleNamespace, asking: np.ndarray) -> dict[int, np.ndarray]:
    """The sets of the membership nodes, in order, each ended by a NaN."""
    if not len(asking):
        return {}
    values = np.asarray(() if a.membership_values is None else a.membership_values)
    cuts = np.flatnonzero(np.isnan(values.astype(np.float64)))
    if len(cuts) != len(asking):
        raise Invalid(f"`membership_values` has {len(cuts)} sets for {len(asking)} nodes", code="OCC0107")
    return {int(k): s[~np.isnan(s)] for k, s in zip(asking, np.split(values, cuts + 1), strict=False)}


# Operators
# --------------------------------------------------------------------------------------------------------------


def _totals(b: GraphBuilder, x: Value, p: Packed, how: str) -> Value:
    """The sums of the leaves that each row reaches, [n, columns of `p`]."""
    features = int(p.features.max(initial=0)) // (2 if p.missing else 1) + 1
    given = x.tensor.dims[1]
    if isinstance(given, int) and features > given:
        raise Invalid(f"a node tests a feature outside of the {given} that exist", code="OCC0107")
    arrays = (b.constant(v) for v in (p.features, p.splits, p.links, p.weights))
    y = b.forest(
        x, *arrays, trees=p.trees, groups=p.groups, depth=p.depth, how=_REDUCE[how], features=features,
        missing=p.missing,
    )  # fmt: skip
    return b.Reshape(y, b.constant([0, p.groups * p.weights.shape[1]], I64))


def _all_targets(b: GraphBuilder, y: Value, p: Packed, targets: int, how: str, trees: int) -> Value:
    """The totals of all targets, 0 for those that no leaf contributes to."""
    dtype = y.tensor.dtype
    if how == "AVERAGE":
        y = b.Div(y, b.constant(trees, dtype))
    elif how != "SUM":
        y = b.Where(b.Or(b.IsInf(y), b.IsNaN(y)), b.constant(0, dtype), y)
    if p.columns == tuple(range(targets)):
        return y
    width = y.tensor.dims[1]
    padded = b.Pad(y, b.constant([0, 0, 0, 1], I64))
    return columns(b, padded, [p.columns.index(k) if k in p.columns else width for k in range(targets)])


def _base(b: GraphBuilder, y: Value, a: SimpleNamespace, targets: int) -> Value:
    given = _base_values(a)
    if not len(given):
        return y
    if len(given) not in (1, targets):
        raise Invalid(f"`base_values` has {len(given)} elements for {targets} targets", code="OCC0107")
    return b.Add(y, b.constant(given, y.tensor.dtype))


def _base_values(a: SimpleNamespace) -> Sequence[float]:
    given = a.base_values if getattr(a, "base_values_as_tensor", None) is None else a.base_values_as_tensor.tolist()
    return () if given is None else tuple(given)


@op("ai.onnx.ml.TreeEnsembleRegressor")
class TreeEnsembleRegressor:
    """Sums of the leaves that each row reaches, over all trees."""

    def composite(b, x, *, a):
        x, targets, how = rows(b, x), a.n_targets or 1, a.aggregate_function
        if how not in _REDUCE:
            raise Invalid(f"`aggregate_function` is {how!r}", code="OCC0107", note=f"one of {', '.join(_REDUCE)}")
        p = _once(a, (*_NODES, *_leaf_names("target")), "target", x.tensor.dtype.numpy, targets, how)
        y = _all_targets(b, _totals(b, x, p, how), p, targets, how, len(set(a.nodes_treeids)))
        return single(b, transformed(b, _base(b, y, a, targets), a.post_transform))


def _leaf_names(leaf: str) -> tuple[str, ...]:
    return tuple(f"{leaf}_{k}" for k in ("treeids", "nodeids", "ids", "weights", "weights_as_tensor"))


@op("ai.onnx.ml.TreeEnsemble")
class TreeEnsemble:
    """Decision trees of any kind (ai.onnx.ml 5): the combined leaf values per row, over all trees."""

    def composite(b, x, *, a):
        given, targets = x.tensor.dtype, a.n_targets or 1
        if a.aggregate_function not in range(4) or a.post_transform not in range(5):
            raise Invalid("`aggregate_function` or `post_transform` is not a known number", code="OCC0107")
        x, how = rows(b, x), _AGGREGATES[a.aggregate_function]
        p = _once(a, _LINKED, "", x.tensor.dtype.numpy, targets, how)
        y = _all_targets(b, _totals(b, x, p, how), p, targets, how, len(a.tree_roots))
        y = transformed(b, y, POST_TRANSFORMS[a.post_transform])
        return y if y.tensor.dtype == given else b.Cast(y, to=given)


@op("ai.onnx.ml.TreeEnsembleClassifier")
class TreeEnsembleClassifier:
    """The class of each row and the scores of all classes, by trees."""

    def composite(b, x, *, a):
        x, labels = rows(b, x), a.classlabels_strings or a.classlabels_int64s or ()
        classes = max(len(labels), 1)
        p = _once(a, (*_NODES, *_leaf_names("class")), "class", x.tensor.dtype.numpy, classes, "SUM")
        y = _totals(b, x, p, "SUM")
        if classes == 2 and len(p.columns) == 1:
            return _one_score(b, y, p.columns[0], a)
        y = _base(b, _all_targets(b, y, p, classes, "SUM", 0), a, classes)
        scores = single(b, transformed(b, y, a.post_transform))
        if classes == 1:
            positive = b.Greater(y, b.constant(0, y.tensor.dtype))
            return b.Reshape(b.Cast(positive, to=I64), b.constant([-1], I64)), scores
        return labelled(b, best(b, y), a.classlabels_strings, a.classlabels_int64s), scores


def _one_score(b: GraphBuilder, score: Value, k: int, a: SimpleNamespace) -> tuple[Value, Value]:
    """Two classes whose leaves contribute to only one: the score of the second.

    It is a probability if no weight is negative.
    """
    base, dtype = _base_values(a), score.tensor.dtype
    if len(base) not in (0, 1, 2):
        raise Invalid(f"`base_values` has {len(base)} elements for 2 targets", code="OCC0107")
    if base:
        score = b.Add(score, b.constant(base[k] if len(base) == 2 else base[0] * (k == 0), dtype))
    weights = a.class_weights if getattr(a, "class_weights_as_tensor", None) is None else a.class_weights_as_tensor
    positive = bool((np.asarray(weights) >= 0).all())
    if k == 1:  # the first class then has a score of its own, which no leaf contributes to
        both = b.Pad(score, b.constant([0, 1, 0, 0], I64), b.constant(base[0] if base else 0, dtype))
    elif a.post_transform == "PROBIT" or (positive and a.post_transform == "NONE"):
        both = b.Concat(b.Sub(b.constant(1, dtype), score), score, axis=1)
    else:
        both = b.Concat(b.Neg(score), score, axis=1)
    scores = single(b, transformed(b, both, a.post_transform))
    second = b.Reshape(b.Greater(score, b.constant(0.5 if positive else 0, dtype)), b.constant([-1], I64))
    return labelled(b, second, a.classlabels_strings, a.classlabels_int64s), scores


ALL = (TreeEnsembleClassifier, TreeEnsembleRegressor, TreeEnsemble)
