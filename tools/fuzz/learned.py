"""Makers of what training leaves: decision trees of ai.onnx.ml, and the attention of a decoder's step."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tools.fuzz.generate import Graph
from tools.fuzz.inputs import F16
from tools.fuzz.operators import F32
from tools.fuzz.oracle import ML, Reject

_COMPARES = ("BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_NODES = ("nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")


def trees(g: Graph, op: str) -> Any:
    """A forest that compares in one way or in all, and whose leaves have values for one target or several."""
    features, targets = g.choose([1, 3, 8]), g.choose([1, 1, 2, 5])
    kinds = _COMPARES if g.chance(0.4) else [g.choose(_COMPARES)]
    attrs: dict[str, list[Any]] = {f"nodes_{n}": [] for n in ("treeids", *_NODES)}
    attrs |= {f"target_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
    for k in range(g.choose([1, 2, 9, 33])):
        nodes = _tree(g, kinds, features)
        leaves = [n[0] for n in nodes if n[1] == "LEAF"]
        given = [(n, t) for n in leaves for t in (range(targets) if g.chance(0.2) else [k % targets])]
        attrs["nodes_treeids"] += [k] * len(nodes)
        for name, column in zip(_NODES, zip(*nodes, strict=True), strict=True):
            attrs[f"nodes_{name}"] += column
        attrs["target_treeids"] += [k] * len(given)
        attrs["target_nodeids"] += [n for n, _ in given]
        attrs["target_ids"] += [t for _, t in given]
        attrs["target_weights"] += g.rng.standard_normal(len(given)).astype(np.float32).tolist()
    dtype, rows = g.choose([F32, F32, F32, np.float64]), g.choose([1, 2, 5, 31, 64, 97])
    how = {"aggregate_function": g.choose(["SUM", "SUM", "AVERAGE", "MIN", "MAX"]), "n_targets": targets}
    # onnxruntime forgets the transform of one target, and the base value of targets that no leaf of a row has a value for.
    if targets == 1 and g.chance(0.3):
        how["base_values"] = g.rng.standard_normal(targets).tolist()
    elif targets > 1 and g.chance(0.3):
        how["post_transform"] = "LOGISTIC"
    x = g.new(dtype, (rows, features), constant=False)
    return g.keep(helper.make_node("TreeEnsembleRegressor", [x], [g.fresh("v")], domain=ML, **attrs, **how))


def _tree(g: Graph, kinds: Any, features: int) -> list[tuple[Any, ...]]:
    """The nodes of a tree, as `_NODES` names what they have; a node below the root may be a leaf."""
    nodes, waiting, count, depth = list[tuple[Any, ...]](), [(0, 0)], 1, g.choose([0, 1, 3, 5])
    while waiting:
        node, level = waiting.pop()
        split = float(g.choose([-1, 0, 1, 2]) if g.chance(0.3) else np.float32(g.rng.uniform(-3, 3)))
        if level == depth or (level > 0 and g.chance(0.25)):
            nodes.append((node, "LEAF", 0, 0.0, 0, 0, 0))
            continue
        yes, no = count, count + 1
        nodes.append((node, g.choose(kinds), int(g.rng.integers(features)), split, yes, no, int(g.chance(0.3))))
        waiting += [(yes, level + 1), (no, level + 1)]
        count += 2
    return nodes


def stepped(g: Graph, op: str) -> Any:
    """A step of a decoder: a few queries of what a cache holds and of what is new, whose heads several queries may share."""
    if g.opset < 13:
        raise Reject("Softmax is that of a matrix")
    d, size = g.choose([F32, F32, F32, F16]), g.choose([4, 8, 16, 24])
    batch, heads, shared = g.choose([1, 2]), g.choose([1, 2, 3]), g.choose([1, 1, 2, 4])
    steps, past = g.choose([1, 1, 1, 2, 3, 4, 5]), g.choose([0, 5, 63, 64, 77, 127])
    leaf = lambda *shape: g.new(d, shape, -2, 2, constant=False)
    q = leaf(batch, heads * shared, steps, size)
    k, v = (leaf(batch, heads, past, size) for _ in "kv")
    if steps == 1 or g.chance(0.5):  # what the step adds
        k, v = (g.add("Concat", [x, leaf(batch, heads, steps, size)], axis=2) for x in (k, v))
    keys = g.values[k].shape[2]
    masks = [g.new(d, g.choose([(steps, keys), (batch, 1, steps, keys)]))] if g.chance(0.5) else []
    if g.has("Attention") and g.chance(0.4):
        return g.node("Attention", [q, k, v, *masks], scale=g.choose([None, 0.25]))
    if shared > 1:
        k, v = (_repeated(g, x, shared) for x in (k, v))
    scores = g.add("MatMul", [q, g.add("Transpose", [k], perm=[0, 1, 3, 2])])
    scores = g.add("Mul", [scores, g.leaf(np.array(size**-0.5, d), True)])
    for mask in masks:
        scores = g.add("Add", [scores, mask])
    y = g.add("MatMul", [g.add("Softmax", [scores], axis=-1), v])
    if g.chance(0.5):
        g.add("Reshape", [g.add("Transpose", [y], perm=[0, 2, 1, 3])], shape=[0, 0, -1])
    return None


def _repeated(g: Graph, x: str, times: int) -> str:
    """Each head as often as queries share it."""
    batch, heads, keys, size = g.values[x].shape
    wide = g.add("Expand", [g.add("Unsqueeze", [x], axes=[2])], shape=[batch, heads, times, keys, size])
    return g.add("Reshape", [wide], shape=[batch, heads * times, keys, size])


LEARNED: dict[str, Any] = {maker.__name__: maker for maker in (trees, stepped)}
