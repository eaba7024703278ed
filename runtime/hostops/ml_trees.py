"""Decision trees of ai.onnx.ml: all rows go down all trees at once, a level at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.runtime.hostops.ml_scores import labels_of, rows_of, transformed

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
_MEMBER, _LEAF = 6, 7
_COMPARE: tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], ...] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal,
)  # fmt: skip
_AT_ONCE = 1 << 22  # (row, tree) pairs under way at once
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")  # in the order of TreeEnsemble's numbers
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # likewise


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees, and what leaves give.

    Attributes:
        mode: index into `_MODES` of each node.
        feature, split: what a node compares; leaves have 0.
        yes, no: nodes that follow.
        nan_is_yes: whether a missing value follows `yes` in any case.
        members: sets of the nodes that ask for membership.
        roots: a node of each tree.
        target, weight: [nodes, most entries of a leaf]; a target of -1 fills up.
    """

    mode: np.ndarray
    feature: np.ndarray
    split: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    nan_is_yes: np.ndarray
    members: dict[int, np.ndarray]
    roots: np.ndarray
    target: np.ndarray
    weight: np.ndarray

    def leaves(self, x: np.ndarray) -> np.ndarray:
        """The leaf of each row in each tree, [rows, trees].

        Raises:
            ValueError: a node looks at a feature that is not there, or a tree goes in circles.
        """
        inner = self.mode != _LEAF
        if inner.any() and not 0 <= self.feature[inner].min() <= self.feature[inner].max() < x.shape[1]:
            raise ValueError(f"a node looks at a feature outside of the {x.shape[1]} that there are")
        at = np.tile(self.roots, (len(x), 1))
        for _ in range(len(self.mode) + 1):
            row, tree = np.nonzero(self.mode[at] != _LEAF)
            if not len(row):
                return at
            node = at[row, tree]
            goes = self._goes(node, x[row, self.feature[node]])
            at[row, tree] = np.where(goes, self.yes[node], self.no[node])
        raise ValueError("a tree goes in circles")

    def _goes(self, node: np.ndarray, value: np.ndarray) -> np.ndarray:
        mode, split = self.mode[node], self.split[node]
        found = np.unique(mode)
        goes = np.zeros(len(node), np.bool_)
        for k in found:
            here = slice(None) if len(found) == 1 else mode == k
            goes[here] = (
                self._members(node[here], value[here]) if k == _MEMBER else _COMPARE[k](value[here], split[here])
            )
        return goes | (self.nan_is_yes[node] & np.isnan(value))

    def _members(self, node: np.ndarray, value: np.ndarray) -> np.ndarray:
        return np.array([v in self.members[n] for n, v in zip(node.tolist(), value, strict=True)], np.bool_)

    def totals(self, x: np.ndarray, targets: int, how: str) -> np.ndarray:
        """What the leaves of each row give, [rows, targets]; 0 to a target that none gives to."""
        parts = [self._totals(part, targets, how) for part in _chunks(x, max(_AT_ONCE // max(len(self.roots), 1), 1))]
        return np.concatenate(parts)

    def _totals(self, x: np.ndarray, targets: int, how: str) -> np.ndarray:
        leaf = self.leaves(x).astype(np.int64)
        target, weight = self.target[leaf], self.weight[leaf]
        if target.size and target.max() >= targets:
            raise ValueError(f"a leaf gives to target {target.max()} of {targets}")
        valid = target >= 0
        place = (np.arange(len(x))[:, None, None] * targets + target)[valid]
        size = len(x) * targets
        kind = np.float64 if weight.dtype == np.float64 else np.float32
        if how in ("SUM", "AVERAGE"):
            sums = np.zeros(size, kind)
            np.add.at(sums, place, weight[valid])  # in the order of the trees, as others do: ties decide labels
            total = sums.reshape(len(x), targets)
            return total / kind(len(self.roots)) if how == "AVERAGE" else total
        total = np.full(size, np.inf if how == "MIN" else -np.inf, kind)
        (np.minimum if how == "MIN" else np.maximum).at(total, place, weight[valid])
        return np.where(np.isfinite(total), total, kind(0)).reshape(len(x), targets)


def _chunks(x: np.ndarray, rows: int) -> list[np.ndarray]:
    return [x[k : k + rows] for k in range(0, max(len(x), 1), rows)]


def _padded(node: np.ndarray, target: np.ndarray, weight: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries (node, target, weight) as rows of one length, a row for each node."""
    order = np.argsort(node, kind="stable")
    node, target, weight = node[order], target[order], weight[order]
    count = np.bincount(node, minlength=nodes)
    column = np.arange(len(node)) - np.repeat(np.cumsum(count) - count, count)
    width = int(count.max(initial=1))
    targets, weights = np.full((nodes, width), -1, np.int64), np.zeros((nodes, width), weight.dtype)
    targets[node, column], weights[node, column] = target, weight
    return targets, weights


def _column(a: SimpleNamespace, name: str, length: int, default: float = 0) -> np.ndarray:
    """A floating-point attribute, which may be a tensor."""
    given = getattr(a, f"{name}_as_tensor", None)
    given = getattr(a, name) if given is None else given
    made = np.full(length, default, np.float32) if given is None else np.asarray(given)
    if made.dtype.kind != "f" or not isinstance(given, np.ndarray):
        made = made.astype(np.float32)  # attributes hold f32
    if len(made) != length:
        raise ValueError(f"`{name}` has {len(made)} elements, not {length}")
    return made


def _numbers(given: Sequence[int] | None, length: int, name: str) -> np.ndarray:
    made = np.zeros(length, np.int64) if given is None else np.asarray(given, np.int64)
    if len(made) != length:
        raise ValueError(f"`{name}` has {len(made)} elements, not {length}")
    return made


def listed_forest(a: SimpleNamespace, leaf: str, targets: str) -> Forest:
    """The trees of TreeEnsembleClassifier and TreeEnsembleRegressor; `leaf` is `class` or `target`."""
    n = len(a.nodes_treeids or ())
    tree, number = _numbers(a.nodes_treeids, n, "nodes_treeids"), _numbers(a.nodes_nodeids, n, "nodes_nodeids")
    if len(a.nodes_modes or ()) != n:
        raise ValueError(f"`nodes_modes` has {len(a.nodes_modes or ())} elements, not {n}")
    mode = np.array([_MODES.index(m) for m in a.nodes_modes or ()], np.int8)
    place = {key: k for k, key in enumerate(zip(tree.tolist(), number.tolist(), strict=True))}

    def follow(name: str) -> np.ndarray:
        ids = _numbers(getattr(a, name), n, name).tolist()
        pairs = zip(tree.tolist(), ids, (mode == _LEAF).tolist(), strict=True)
        return np.array([0 if is_leaf else place[t, i] for t, i, is_leaf in pairs], np.int32)

    ids = getattr(a, targets) or ()
    trees, nodes = (_numbers(getattr(a, f"{leaf}_{k}"), len(ids), f"{leaf}_{k}") for k in ("treeids", "nodeids"))
    try:
        at = np.array([place[key] for key in zip(trees.tolist(), nodes.tolist(), strict=True)], np.int64)
        yes, no = follow("nodes_truenodeids"), follow("nodes_falsenodeids")
    except KeyError as e:
        raise ValueError(f"there is no node {e.args[0][1]} in tree {e.args[0][0]}") from None
    weight = _column(a, f"{leaf}_weights", len(ids))
    _, first = np.unique(tree, return_index=True)
    return Forest(
        mode, _numbers(a.nodes_featureids, n, "nodes_featureids"), _column(a, "nodes_values", n), yes, no,
        _numbers(a.nodes_missing_value_tracks_true, n, "nodes_missing_value_tracks_true") != 0, {},
        first.astype(np.int32), *_padded(at, np.asarray(ids, np.int64), weight, n),
    )  # fmt: skip


def linked_forest(a: SimpleNamespace) -> Forest:
    """The trees of TreeEnsemble: inner nodes first, leaves after them."""
    n, leaves = len(a.nodes_featureids), len(a.leaf_targetids)
    mode = np.concatenate([np.asarray(a.nodes_modes, np.int8), np.full(leaves, _LEAF, np.int8)])

    def follow(side: str) -> np.ndarray:
        is_leaf = _numbers(getattr(a, f"nodes_{side}leafs"), n, f"nodes_{side}leafs") != 0
        ids = _numbers(getattr(a, f"nodes_{side}nodeids"), n, f"nodes_{side}nodeids")
        if ((ids < 0) | (ids >= np.where(is_leaf, leaves, n))).any():
            raise ValueError(f"`nodes_{side}nodeids` names a node that is not there")
        return np.concatenate([np.where(is_leaf, ids + n, ids), np.zeros(leaves, np.int64)]).astype(np.int32)

    def wide(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.zeros(leaves, x.dtype)])

    members: dict[int, np.ndarray] = {}
    asking = np.flatnonzero(mode == _MEMBER)
    if len(asking):
        values = np.asarray(() if a.membership_values is None else a.membership_values)
        cuts = np.flatnonzero(np.isnan(values.astype(np.float64)))
        if len(cuts) != len(asking):
            raise ValueError(f"`membership_values` has {len(cuts)} sets for {len(asking)} nodes")
        members = {int(k): s[~np.isnan(s)] for k, s in zip(asking, np.split(values, cuts + 1), strict=False)}
    nan_is_yes = _numbers(a.nodes_missing_value_tracks_true, n, "nodes_missing_value_tracks_true") != 0
    target, weight = np.full((n + leaves, 1), -1, np.int64), np.zeros((n + leaves, 1), a.leaf_weights.dtype)
    target[n:, 0], weight[n:, 0] = a.leaf_targetids, a.leaf_weights
    return Forest(
        mode, wide(_numbers(a.nodes_featureids, n, "nodes_featureids")), wide(np.asarray(a.nodes_splits)),
        follow("true"), follow("false"), wide(nan_is_yes), members, _numbers(a.tree_roots, len(a.tree_roots), "tree_roots"),
        target, weight,
    )  # fmt: skip


def _once(a: SimpleNamespace, make: Callable[[], Forest]) -> Forest:
    """The forest of a step, made at its first run and kept with its attributes."""
    made = getattr(a, "_forest", None)
    if made is None:
        made = a._forest = make()
    return made


def tree_ensemble(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    forest = _once(a, lambda: linked_forest(a))
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    total = forest.totals(rows, a.n_targets or 1, _AGGREGATES[a.aggregate_function])
    return transformed(total, _TRANSFORMS[a.post_transform]).astype(x.dtype)


def tree_regressor(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    forest = _once(a, lambda: listed_forest(a, "target", "target_ids"))
    total = forest.totals(rows_of(x), a.n_targets or 1, a.aggregate_function)
    base = _base(a, total.shape[1])
    return transformed(total if base is None else total + base, a.post_transform).astype(np.float32)


def _base(a: SimpleNamespace, targets: int) -> np.ndarray | None:
    given = a.base_values if a.base_values_as_tensor is None else a.base_values_as_tensor
    if given is None or not len(given):
        return None
    if len(given) not in (1, targets):
        raise ValueError(f"`base_values` has {len(given)} elements for {targets} targets")
    return np.asarray(given) if isinstance(given, np.ndarray) else np.asarray(given, np.float32)


def tree_classifier(x: np.ndarray, *, a: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    """Labels [n], scores f32[n, classes]."""
    forest = _once(a, lambda: listed_forest(a, "class", "class_ids"))
    n_classes = max(len(a.classlabels_strings or a.classlabels_int64s or ()), 1)
    total = forest.totals(rows_of(x), n_classes, "SUM")
    base = _base(a, n_classes)
    ids = set(a.class_ids or ())
    if n_classes == 2 and len(ids) == 1:
        return _one_score(total, ids.pop(), base, forest, a)
    total = total if base is None else total + base
    if n_classes == 1:
        return (total[:, 0] > 0).astype(np.int64), _scores(total, a)
    return labels_of(np.argmax(total, axis=1), a, "classlabels_int64s"), _scores(total, a)


def _one_score(
    total: np.ndarray, k: int, base: np.ndarray | None, forest: Forest, a: SimpleNamespace
) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, and leaves that give to one only: the score of the second, a probability if no weight is negative."""
    score = total[:, k] if base is None else total[:, k] + (base[k] if len(base) == 2 else base[0] * (k == 0))
    positive = bool((forest.weight >= 0).all())
    is_probability = a.post_transform == "PROBIT" or (positive and a.post_transform == "NONE")
    first = 1 - score if is_probability else -score
    if k == 1:  # the first class has a score of its own then, which no leaf adds to
        first = np.full_like(score, 0 if base is None else base[0])
    both = np.stack([first, score], axis=1)
    label = (score > (0.5 if positive else 0)).astype(np.int64)
    return labels_of(label, a, "classlabels_int64s"), _scores(both, a)


def _scores(total: np.ndarray, a: SimpleNamespace) -> np.ndarray:
    return transformed(total, a.post_transform).astype(np.float32)


ROUTINES: dict[str, Callable[..., Any]] = {
    "TreeEnsemble": tree_ensemble, "TreeEnsembleRegressor": tree_regressor, "TreeEnsembleClassifier": tree_classifier,
}  # fmt: skip
