"""Tree ensembles of ai.onnx.ml, and their array form for kernels (`ops/own/forest.py`).

Files compare in seven ways and state for each node where missing values go. Here everything becomes `x <= split`, to
the left, or not: `x < s` is `x <= s'` with the number before `s`, `x > s` is `x <= s` with its sides swapped, equality
takes two nodes and membership a search among them. So one loop evaluates all files, exactly as they compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.runtime.dataclass import dataclass

Array = np.ndarray

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)
# The value of a leaf for targets without an entry.
NONE = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}


@dataclass
class Trees:
    """Nodes of all trees as a file has them.

    Attributes:
        mode: index into `MODES` of each node.
        feature, split: what a node compares.
        yes, no: child nodes; arbitrary for leaves.
        nan_is_yes: whether a missing value goes to `yes` in any case.
        roots: a node of each tree.
        leaf, target, weight: leaf values, with an element for each pair of leaf and target.
        members: sets of the membership nodes.
    """

    mode: Array
    feature: Array
    split: Array
    yes: Array
    no: Array
    nan_is_yes: Array
    roots: Array
    leaf: Array
    target: Array
    weight: Array
    members: dict[int, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Packed:
    """Trees as arrays: the operands and attributes of the op `forest`.

    Attributes:
        depth: steps from a root to the deepest leaf.
        trees, groups: number of trees per group, and number of groups.
        missing: whether features are numbered in pairs, for missing values that go left.
        columns: the target of each result column; other targets have none.
    """

    features: Array
    splits: Array
    links: Array
    weights: Array
    depth: int
    trees: int
    groups: int
    missing: bool
    columns: tuple[int, ...]


@dataclass
class _Nodes:
    """Tree nodes that branch left on `<= split`, and right otherwise.

    NaN goes right; left if `nan_left`.
    """

    feature: Array
    split: Array
    left: Array
    right: Array
    nan_left: Array
    inner: Array

    def add(self, feature: int, split: float, left: int, right: int) -> int:
        """One more node, as equality needs; returns its index."""
        self.extra.append((feature, split, left, right))
        return len(self.feature) + len(self.extra) - 1

    def __post_init__(self) -> None:
        self.extra: list[tuple[int, float, int, int]] = []

    def complete(self) -> _Nodes:
        """The arrays with the added nodes."""
        if not self.extra:
            return self
        feature, split, left, right = (np.array(c) for c in zip(*self.extra, strict=True))
        more = (feature, split, left, right, np.zeros(len(left), bool), np.ones(len(left), bool))
        mine = (self.feature, self.split, self.left, self.right, self.nan_left, self.inner)
        return _Nodes(*(np.concatenate([a, b.astype(a.dtype)]) for a, b in zip(mine, more, strict=True)))


def pack(t: Trees, dtype: np.dtype, targets: int, how: str) -> Packed:
    """The trees for rows of `dtype`, f32 or f64.

    Args:
        t: the trees.
        dtype: of the compared values, and of the weights.
        targets: their number.
        how: `SUM`, `AVERAGE`, `MIN` or `MAX`.

    Raises:
        Invalid: a tree is cyclic, or a leaf contributes to a target that does not exist.
    """
    if t.target.size and not 0 <= t.target.min() <= t.target.max() < targets:
        raise Invalid(f"a leaf has a value for target {t.target.max()} of {targets}", code="OCC0107")
    nodes = _uniform(t)
    depth = _height(nodes, t.roots)
    roots, columns, width = _grouped(nodes, t, targets)
    slots, links = _laid(nodes, np.where(roots < 0, len(nodes.feature), roots).reshape(-1))
    missing = bool(nodes.nan_left.any())
    count = 1 << max(len(slots) - 1, 1).bit_length()
    inner = np.append(nodes.inner, False)[slots]
    feature, split, nan = (np.append(v, 0)[slots] for v in (nodes.feature, nodes.split, nodes.nan_left))
    feature = np.where(inner, feature * 2 + nan.astype(np.int64) if missing else feature, 0)
    splits = np.where(inner, _below(split, dtype), np.nan).astype(dtype)
    table = _table(t, len(nodes.feature), columns if width > 1 else (), targets, dtype, how)[slots]
    return Packed(
        _filled(feature.astype(np.uint16 if feature.max(initial=0) < 1 << 16 else np.int32), count),
        _filled(splits, count), _filled(links.astype(np.int32), count), _filled(table, count),
        max(depth, 1), roots.shape[1], roots.shape[0], missing, columns,
    )  # fmt: skip


def _filled(x: Array, count: int) -> Array:
    return np.concatenate([x, np.zeros((count - len(x), *x.shape[1:]), x.dtype)])


def _before(x: Array) -> Array:
    """The next lower f64; NaN, which nothing is below or equal to, for -inf."""
    return np.where(np.isneginf(x), np.nan, np.nextafter(x, -np.inf))


def _below(x: Array, dtype: np.dtype) -> Array:
    """The largest number of a type that is not above another one.

    Rows of that type are below or equal to both, or to neither.
    """
    with np.errstate(over="ignore"):
        near = x.astype(dtype)
    return np.where(near.astype(np.float64) > x, np.nextafter(near, dtype.type(-np.inf)), near)


def _uniform(t: Trees) -> _Nodes:
    """The nodes with all comparisons as `x <= split`."""
    split = t.split.astype(np.float64)
    swapped = (t.mode == GTE) | (t.mode == GT)
    strict = (t.mode == LT) | (t.mode == GTE)
    left, right = np.where(swapped, t.no, t.yes), np.where(swapped, t.yes, t.no)
    bound = np.where(strict, _before(split), split)
    inner = t.mode != LEAF
    nan_left = inner & (t.nan_is_yes != swapped)
    nodes = _Nodes(t.feature.astype(np.int64), bound, left.astype(np.int64), right.astype(np.int64), nan_left, inner)
    special = inner & ((t.mode >= EQ) | np.isnan(split) | np.isnan(bound))
    for k in np.flatnonzero(special).tolist():
        _spell_out(nodes, t, k)
    return nodes.complete()


def _spell_out(nodes: _Nodes, t: Trees, k: int) -> None:
    """Replace node `k` by nodes for equality, membership, and comparisons that no number satisfies."""
    f, yes, no, mode = int(t.feature[k]), int(t.yes[k]), int(t.no[k]), int(t.mode[k])
    nan_goes = yes if t.nan_is_yes[k] or mode == NEQ else no
    yes, no = (no, yes) if mode == NEQ else (yes, no)
    if mode == MEMBER:
        wanted = np.unique(t.members[k].astype(np.float64))
    elif mode in (EQ, NEQ):
        wanted = np.unique(np.float64(t.split[k]))
    else:
        wanted = np.empty(0)  # a comparison with NaN, or with -inf: nothing is below it
        if mode == GTE and not np.isnan(t.split[k]):
            no = yes  # all numbers are -inf or more
    wanted = wanted[~np.isnan(wanted)]
    first = _search(nodes, f, wanted, yes, no)
    nodes.feature[k], nodes.split[k], nodes.left[k], nodes.right[k] = f, np.inf, first, nan_goes
    nodes.nan_left[k] = False


def _search(nodes: _Nodes, f: int, wanted: Array, yes: int, no: int) -> int:
    """A node that leads numbers in the sorted list to `yes`, and others to `no`."""
    if not len(wanted):
        return no
    if len(wanted) == 1:
        (value,) = wanted
        least = nodes.add(f, float(_before(np.array(value))), no, yes)
        return nodes.add(f, float(value), least, no)
    half = len(wanted) // 2
    low, high = (_search(nodes, f, part, yes, no) for part in (wanted[:half], wanted[half:]))
    return nodes.add(f, float(wanted[half - 1]), low, high)


def _height(nodes: _Nodes, roots: Array) -> int:
    """Steps from a root to the deepest leaf.

    Raises:
        Invalid: a tree is cyclic.
    """
    height = np.zeros(len(nodes.feature), np.int64)
    at = np.flatnonzero(nodes.inner)
    left, right = nodes.left[at], nodes.right[at]
    for _ in range(len(at) + 1):
        new = np.maximum(height[left], height[right]) + 1
        if (new == height[at]).all():
            return int(height[roots].max(initial=0))
        height[at] = new
    raise Invalid("a tree has a cycle", code="OCC0107")


def _grouped(nodes: _Nodes, t: Trees, targets: int) -> tuple[Array, tuple[int, ...], int]:
    """Roots in groups [groups, trees], -1 if a group has fewer; the targets of the columns; columns of a leaf.

    If each tree contributes to one target, a target's trees form a group, and a leaf has one weight.
    """
    used = tuple(np.unique(t.target).tolist())
    owner = _owners(nodes, t)
    if owner is None or len(used) <= 1:
        return t.roots[None, :], used, max(len(used), 1)
    parts = [t.roots[owner == k] for k in used]
    longest = max(map(len, parts))
    if longest * len(parts) > 2 * len(t.roots):
        return t.roots[None, :], used, len(used)
    return np.stack([np.concatenate([p, np.full(longest - len(p), -1)]) for p in parts]), used, 1


def _owners(nodes: _Nodes, t: Trees) -> Array | None:
    """The single target of each tree.

    None if a tree contributes to several, or two trees share nodes.
    """
    tree = np.full(len(nodes.feature), -1)
    here, of = t.roots, np.arange(len(t.roots))
    while len(here):
        here, first, again = np.unique(here, return_index=True, return_inverse=True)
        if (of[first][again] != of).any() or ((tree[here] >= 0) & (tree[here] != of[first])).any():
            return None
        of = of[first]
        tree[here] = of
        go = nodes.inner[here]
        here, of = np.concatenate([nodes.left[here[go]], nodes.right[here[go]]]), np.concatenate([of[go], of[go]])
    owner = np.full(len(t.roots) + 1, -1)
    of_entry = tree[t.leaf]
    owner[of_entry] = t.target
    return owner[:-1] if (owner[of_entry] == t.target)[of_entry >= 0].all() else None


def _laid(nodes: _Nodes, roots: Array) -> tuple[Array, Array]:
    """Nodes in pairs, level by level: the node in each slot, and its left child's slot.

    A node with several parents is in several slots; node `len(nodes)` is a leaf without a value.
    """
    inner = np.append(nodes.inner, False)
    pair = np.full(len(inner), -1, np.int64)  # slot of the children of each node
    levels, count, here = [roots], len(roots), roots
    while len(here):
        new = np.unique(here[inner[here]])
        new = new[pair[new] < 0]
        pair[new] = count + 2 * np.arange(len(new))
        here = np.stack([nodes.left[new], nodes.right[new]], axis=1).reshape(-1)
        levels.append(here)
        count += len(here)
    slots = np.concatenate(levels)
    return slots, np.where(inner[slots], pair[slots], np.arange(len(slots)) - 1)


def _table(t: Trees, count: int, columns: Sequence[int], targets: int, dtype: np.dtype, how: str) -> Array:
    """Leaf weights of each node [count + 1, columns]: one column, or one per target."""
    place = np.zeros(targets, np.int64)
    place[list(columns)] = np.arange(len(columns))
    table = np.full((count + 1, max(len(columns), 1)), NONE[how], dtype)
    at = (t.leaf, place[t.target])
    combine: Callable[..., None] = {"MIN": np.minimum.at, "MAX": np.maximum.at}.get(how, np.add.at)
    combine(table, at, t.weight.astype(dtype))
    return table
