"""Classifier scores of ai.onnx.ml: transformations, labels, support vectors.

Two classes with one score get the score and its negation, as in the ONNX reference.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def rows_of(x: np.ndarray) -> np.ndarray:
    """A matrix of f32, or of f64 if the operand is; a vector is one row."""
    wide = x if x.dtype.name in ("float32", "float64") else x.astype(np.float32)
    return wide.reshape(1, -1) if wide.ndim == 1 else wide


def labels_of(positions: np.ndarray, a: SimpleNamespace, ints: str) -> np.ndarray:
    """The labels at some positions; the positions themselves if there are no labels."""
    if a.classlabels_strings:
        return np.array(a.classlabels_strings, object)[positions]
    given = getattr(a, ints)
    return np.array(given, np.int64)[positions] if given else positions.astype(np.int64)


# transformations of rows of scores


def logistic(s: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(s))
    return np.where(s < 0, e / (1 + e), 1 / (1 + e))


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_zero(s: np.ndarray) -> np.ndarray:
    """Softmax in which zeros stay 0."""
    top = s.max(axis=1, keepdims=True)
    e = np.where(np.abs(s) > 1e-7, np.exp(s - top), s * np.exp(-top))
    total = e.sum(axis=1, keepdims=True)
    return np.where(total == 0, 0.5, e / np.where(total == 0, 1, total))


def probit(s: np.ndarray) -> np.ndarray:
    u = 2 * s - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log((1 - u) * (1 + u))
        v = 2 / (np.pi * 0.147) + 0.5 * log
        return 1.41421356 * np.sign(u) * np.sqrt(np.sqrt(v * v - log / 0.147) - v)


TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "NONE": lambda s: s, "SOFTMAX": softmax, "LOGISTIC": logistic, "SOFTMAX_ZERO": softmax_zero, "PROBIT": probit,
}  # fmt: skip


def transformed(s: np.ndarray, how: str) -> np.ndarray:
    """Rows of scores after `post_transform`.

    Raises:
        ValueError: there is no such transformation.
    """
    if how not in TRANSFORMS:
        raise ValueError(f"`post_transform` is {how!r}")
    return TRANSFORMS[how](s) if s.size else s


# support vectors


def _kernel(x: np.ndarray, vectors: np.ndarray, a: SimpleNamespace, kind: str) -> np.ndarray:
    """[n, features], [m, features] -> [n, m]."""
    gamma, coef0, degree = a.kernel_params or (0.0, 0.0, 0.0)
    match kind:
        case "LINEAR":
            return x @ vectors.T
        case "POLY":
            return (gamma * (x @ vectors.T) + coef0) ** degree
        case "SIGMOID":
            return np.tanh(gamma * (x @ vectors.T) + coef0)
        case "RBF":
            square = (x * x).sum(1)[:, None] + (vectors * vectors).sum(1)[None, :] - 2 * (x @ vectors.T)
            return np.exp(-gamma * np.maximum(square, 0))
        case _:
            raise ValueError(f"`kernel_type` is {kind!r}")


def svm_regressor(x: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    x = rows_of(x).astype(np.float64)
    weights = np.array(a.coefficients, np.float64)
    if a.n_supports > 0:
        vectors = np.array(a.support_vectors, np.float64).reshape(a.n_supports, -1)
        s = _kernel(x, vectors, a, a.kernel_type) @ weights
    else:
        s = x @ weights
    s = (s + a.rho[0])[:, None]
    if a.one_class:
        return np.where(s > 0, 1, -1).astype(np.float32)
    return transformed(s, a.post_transform).astype(np.float32)


def svm_classifier(x: np.ndarray, *, a: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    """Labels [n], scores f32[n, classes or pairs of classes]."""
    x = rows_of(x).astype(np.float64)
    n_classes = max(len(a.classlabels_ints or a.classlabels_strings or ()), 1)
    has_vectors = sum(a.vectors_per_class or ()) > 0
    if has_vectors:
        scores, votes = _pairwise(x, n_classes, a)
    else:
        table = np.array(a.coefficients, np.float64).reshape(n_classes, -1)
        scores, votes = x @ table.T + np.array(a.rho, np.float64)[0], None
    if has_vectors and a.prob_a:
        scores = _probabilities(scores, n_classes, a)
    chosen = np.argmax(scores if votes is None else votes, axis=1)  # by votes, even if there are probabilities
    if len(a.rho) == 1 and n_classes <= 2:
        return _one_boundary(scores, votes, chosen, n_classes, a)
    return labels_of(chosen, a, "classlabels_ints"), transformed(scores, a.post_transform).astype(np.float32)


def _one_boundary(
    scores: np.ndarray, votes: np.ndarray | None, chosen: np.ndarray, n_classes: int, a: SimpleNamespace
) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, or one, separated by one score."""
    top = np.take_along_axis(scores if votes is None or a.prob_a else votes, chosen[:, None], axis=1)[:, 0]
    how = a.post_transform
    if n_classes == 2:
        if not a.prob_a and min(a.coefficients) >= 0:
            chosen = np.where(top >= 0.5, 1, chosen)
        made = transformed(scores if scores.shape[1] > 1 else np.concatenate([-scores, scores], axis=1), how)
        return labels_of(chosen, a, "classlabels_ints"), made.astype(np.float32)
    return (top > 0).astype(np.int64), transformed(scores, how).astype(np.float32)


def _pairwise(x: np.ndarray, n_classes: int, a: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    """The score of each pair of classes, and how often each class wins."""
    counts = a.vectors_per_class
    ends = np.cumsum(counts)
    spans = [slice(int(end - n), int(end)) for end, n in zip(ends, counts, strict=True)]
    vectors = np.array(a.support_vectors, np.float64).reshape(int(ends[-1]), -1)
    weights = np.array(a.coefficients, np.float64).reshape(-1, int(ends[-1]))
    k = _kernel(x, vectors, a, a.kernel_type)
    votes = np.zeros((len(x), n_classes), np.int64)
    scores: list[np.ndarray] = []
    for i in range(n_classes):
        for j in range(i + 1, n_classes):
            s = k[:, spans[i]] @ weights[j - 1, spans[i]] + k[:, spans[j]] @ weights[i, spans[j]] + a.rho[len(scores)]
            votes[:, i] += s > 0
            votes[:, j] += s <= 0
            scores.append(s)
    return np.stack(scores, axis=1), votes


def _probabilities(scores: np.ndarray, n: int, a: SimpleNamespace) -> np.ndarray:
    """Probabilities of classes from those of pairs (Wu, Lin and Weng 2004, the second method, as in libsvm)."""
    r = np.zeros((len(scores), n, n))
    k = 0
    for i in range(n):
        for j in range(i + 1, n):
            p = 1 - logistic(scores[:, k] * a.prob_a[k] + a.prob_b[k])
            r[:, i, j] = np.clip(p, 1e-7, 1 - 1e-7)
            r[:, j, i] = 1 - r[:, i, j]
            k += 1
    return np.array([_coupled(each) for each in r]).reshape(len(scores), n)


def _coupled(r: np.ndarray) -> np.ndarray:
    n = len(r)
    q = -r.T * r
    np.fill_diagonal(q, 0)
    np.fill_diagonal(q, (r * r).sum(axis=0))
    p = np.full(n, 1.0 / n)
    for _ in range(max(100, n)):
        qp = q @ p
        total = p @ qp
        if np.abs(qp - total).max() < 0.005 / n:
            break
        for t in range(n):
            step = (total - qp[t]) / q[t, t]
            p[t] += step
            total = (total + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step
    return p


ROUTINES: dict[str, Callable[..., Any]] = {
    "SVMRegressor": svm_regressor, "SVMClassifier": svm_classifier,
}  # fmt: skip
