"""Simulates GE's reductions, arg-reductions and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph, Node, cpp_type

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]


def _reduce(fn: Callable[..., Any]) -> Kernel:
    def kernel(node: Node, x: Arrays) -> Any:
        axes = tuple(x[1].reshape(-1).tolist())
        if not axes:
            if node.attrs.get("noop_with_empty_axes", True):
                return x[0]
            axes = tuple(range(x[0].ndim))
        return np.asarray(fn(x[0], axis=axes, keepdims=node.attrs.get("keep_dims", False))).astype(x[0].dtype)

    return kernel


def _mean(v: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
    if v.dtype.kind == "f":
        return v.mean(axis=axis, keepdims=keepdims)
    return np.trunc(v.astype(np.float64).mean(axis=axis, keepdims=keepdims))


def _arg(fn: Callable[..., Any]) -> Kernel:
    def kernel(node: Node, x: Arrays) -> Any:
        if x[1].ndim > 1 or x[1].size != 1:
            raise BadGraph(f"{node.name}: `dimension` is one axis")
        return np.asarray(fn(x[0], int(x[1].reshape(-1)[0]))).astype(cpp_type(node.attrs.get("dtype", 9)))

    return kernel


def _cumulative(fn: Any, neutral: int) -> Any:
    def made(node: Node, x: Arrays) -> np.ndarray:
        v, axis = x[0], int(x[1].reshape(-1)[0])
        if node.attrs.get("reverse", False):
            v = np.flip(v, axis)
        total = fn(v, axis, dtype=v.dtype)
        if node.attrs.get("exclusive", False):
            total = np.roll(total, 1, axis)
            total[tuple(0 if k == axis % v.ndim else slice(None) for k in range(v.ndim))] = neutral
        return np.flip(total, axis) if node.attrs.get("reverse", False) else total

    return made


def _top_k(node: Node, x: Arrays) -> list[np.ndarray]:
    v, k, axis = x[0], int(x[1].reshape(-1)[0]), node.attrs.get("dim", -1)
    keys = (
        v
        if not node.attrs.get("largest", True)
        else -v.astype(np.float64)
        if v.dtype.kind == "f"
        else -v.astype(np.int64)
    )
    order = np.argsort(keys, axis, kind="stable")
    index = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(v, index, axis), index.astype(np.int32)]


KERNELS: dict[str, Kernel] = {
    "ArgMaxV2": _arg(np.argmax), "ArgMin": _arg(np.argmin), "Cumprod": _cumulative(np.cumprod, 1),
    "Cumsum": _cumulative(np.cumsum, 0), "ReduceMax": _reduce(np.max),
    "ReduceMean": _reduce(_mean), "ReduceMin": _reduce(np.min), "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum), "TopK": _top_k,
}  # fmt: skip
