"""Makers of nodes of ai.onnx.ml, as exporters of scikit-learn and of tree libraries write them; numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz.contrib import put
from tools.fuzz.generate import Graph
from tools.fuzz.operators import F32, fraction
from tools.fuzz.oracle import ML

I64 = np.dtype(np.int64)
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def _rows(
    g: Graph, features: int, *, kinds: tuple[Any, ...] = (F32, F32, np.dtype(np.float64), I64, np.dtype(np.int32))
) -> str:
    return g.new(g.choose(kinds), (g.choose([1, 2, 5, 31]), features), constant=False)


def _reals(g: Graph, count: int) -> list[float]:
    return [float(np.float32(g.choose([fraction(g), -fraction(g)]))) for _ in range(count)]


def _put(g: Graph, op: str, reads: list[str], results: int = 1, **attrs: Any) -> Any:
    return put(g, op, reads, results, ML, **attrs)


def scaled(g: Graph, op: str) -> Any:
    n = g.choose([1, 3, 8])
    count = g.choose([1, n])
    return _put(g, op, [_rows(g, n)], offset=_reals(g, count), scale=_reals(g, count))


def normalised(g: Graph, op: str) -> Any:
    if op == "Binarizer":
        return _put(g, op, [_rows(g, 4, kinds=(F32,))], threshold=g.choose([None, fraction(g), -fraction(g)]))
    return _put(g, op, [_rows(g, g.choose([1, 3, 8]))], norm=g.choose(["MAX", "L1", "L2"]))


def imputed(g: Graph, op: str) -> Any:
    n, d = g.choose([1, 3]), g.choose([F32, I64])
    x = g.rng.integers(-2, 3, (5, n)).astype(d)
    count = g.choose([1, n])
    if d == I64:
        return _put(g, op, [g.leaf(x, False)], imputed_value_int64s=g.rng.integers(-9, 9, count).tolist(),
                    replaced_value_int64=int(g.rng.integers(-2, 3)))  # fmt: skip
    return _put(g, op, [g.leaf(x, False)], imputed_value_floats=_reals(g, count),
                replaced_value_float=float(g.rng.integers(-2, 3)))  # fmt: skip


def linear(g: Graph, op: str) -> Any:
    n, targets = g.choose([1, 3, 8]), g.choose([1, 2, 5])
    x, transform = _rows(g, n), g.choose(_TRANSFORMS)
    if op == "LinearRegressor":
        bias = _reals(g, targets) if g.chance(0.7) else None
        return _put(g, op, [x], coefficients=_reals(g, n * targets), intercepts=bias, targets=targets)
    classes = max(targets, 2)
    # A single row of weights for two classes is a form of its own; labels out of order and far from their places.
    lines = 1 if classes == 2 and g.chance(0.4) else classes
    labels = (g.rng.permutation(classes) * 7 - 3).tolist()
    return _put(g, op, [x], 2, coefficients=_reals(g, n * lines), intercepts=_reals(g, lines), classlabels_ints=labels,
                post_transform=transform, multi_class=g.choose([None, 1]))  # fmt: skip


def kernel_machine(g: Graph, op: str) -> Any:
    n, vectors = g.choose([1, 3]), g.choose([2, 5])
    kernel = g.choose(["LINEAR", "POLY", "RBF", "SIGMOID"])
    params = [0.1 * fraction(g), fraction(g), float(g.choose([1, 2, 3]))]
    x = _rows(g, n, kinds=(F32,))
    return _put(g, op, [x], kernel_type=kernel, kernel_params=params, support_vectors=_reals(g, n * vectors),
                coefficients=_reals(g, vectors), rho=_reals(g, 1), n_supports=vectors)  # fmt: skip


def labelled(g: Graph, op: str) -> Any:
    shape = g.shape(int(g.rng.integers(1, 3)))
    keys = g.rng.permutation(9)[:5].tolist()
    if op == "OneHotEncoder":
        x = g.leaf(g.rng.choice(keys, shape).astype(g.choose([np.int64, np.float32])), False)
        return _put(g, op, [x], cats_int64s=keys, zeros=g.choose([None, 1]))
    x = g.rng.integers(0, 9, shape)
    if g.chance(0.5):  # names that repeat: the first counts, or the last
        return _put(g, op, [g.leaf(x.astype(np.int64), False)], keys_int64s=keys, values_floats=_reals(g, 5),
                    default_float=fraction(g))  # fmt: skip
    return _put(g, op, [g.leaf((x / 3).astype(np.float32), False)], keys_floats=[float(np.float32(k / 3)) for k in keys],
                values_int64s=g.rng.integers(-9, 9, 5).tolist(), default_int64=g.choose([None, -7]))  # fmt: skip


def taken(g: Graph, op: str) -> Any:
    n = g.choose([1, 4, 9])
    if op == "FeatureVectorizer":
        rows, sizes = g.choose([1, 3]), [n, g.choose([1, 2])]
        return _put(g, op, [g.new(F32, (rows, k), constant=False) for k in sizes], inputdimensions=sizes)
    at = g.leaf(g.rng.integers(0, n, (g.choose([1, 3, 7]),)).astype(np.int64))
    return _put(g, op, [g.new(g.choose([F32, I64]), (g.choose([1, 3]), n)), at])


def classified(g: Graph, op: str) -> Any:
    """A forest of stumps with votes for classes, whose labels are out of order."""
    features, classes, count = g.choose([1, 3]), g.choose([2, 3]), g.choose([1, 2, 9])
    attrs: dict[str, list[Any]] = {f"nodes_{k}": [] for k in (
        "treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")}  # fmt: skip
    attrs |= {f"class_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")}
    for t in range(count):
        split, way = (
            float(np.float32(g.choose([fraction(g), -fraction(g), 0.0]))),
            g.choose(["BRANCH_LEQ", "BRANCH_LT"]),
        )
        rows = (
            (0, int(g.rng.integers(features)), way, split, 1, 2),
            (1, 0, "LEAF", 0.0, 0, 0),
            (2, 0, "LEAF", 0.0, 0, 0),
        )
        for node, feature, mode, value, yes, no in rows:
            given = (t, node, feature, mode, value, yes, no, int(g.chance(0.3)))
            for name, v in zip([k for k in attrs if k.startswith("nodes_")], given, strict=True):
                attrs[name].append(v)
        for leaf in (1, 2):
            for c in range(classes) if g.chance(0.4) else [int(g.rng.integers(classes))]:
                for name, v in zip(("treeids", "nodeids", "ids", "weights"), (t, leaf, c, fraction(g)), strict=True):
                    attrs[f"class_{name}"].append(v)
    labels = (g.rng.permutation(classes) * 5 - 4).tolist()
    return _put(g, op, [_rows(g, features, kinds=(F32, np.dtype(np.float64)))], 2, classlabels_int64s=labels,
                post_transform=g.choose(["NONE", "SOFTMAX", "LOGISTIC"]), **attrs)  # fmt: skip


_MAKERS: dict[str, Any] = {
    "Scaler": scaled, "Normalizer": normalised, "Binarizer": normalised, "Imputer": imputed, "LinearRegressor": linear,
    "LinearClassifier": linear, "SVMRegressor": kernel_machine, "LabelEncoder": labelled, "OneHotEncoder": labelled,
    "FeatureVectorizer": taken, "ArrayFeatureExtractor": taken, "TreeEnsembleClassifier": classified,
}  # fmt: skip
FEATURES: dict[str, Any] = {f"ml.{op}": lambda g, _, maker=maker, op=op: maker(g, op) for op, maker in _MAKERS.items()}
