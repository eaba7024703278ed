"""Simulates GE's softmax and normalisations."""

from __future__ import annotations

import numpy as np

from occ.compiler.ge_simulator.compute import Arrays, Kernel
from occ.compiler.ge_simulator.reader import BadGraph, Node


def _softmax(node: Node, x: Arrays) -> np.ndarray:
    axes = tuple(node.attrs.get("axes", [-1]))
    e = np.exp(x[0] - x[0].max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


def _log_softmax(node: Node, x: Arrays) -> np.ndarray:
    axes = tuple(node.attrs.get("axes", [-1]))
    v = x[0] - x[0].max(axis=axes, keepdims=True)
    return v - np.log(np.exp(v).sum(axis=axes, keepdims=True))


def _hard_max(node: Node, x: Arrays) -> np.ndarray:
    v, axis = x[0], node.attrs.get("axis", -1)
    first = np.expand_dims(v.argmax(axis), axis)
    return (np.arange(v.shape[axis]).reshape([-1 if k == axis % v.ndim else 1 for k in range(v.ndim)]) == first).astype(
        v.dtype
    )


def _layer_norm(node: Node, x: Arrays) -> list[np.ndarray]:
    v, gamma, beta = x
    begin, params = node.attrs.get("begin_norm_axis", 0), node.attrs.get("begin_params_axis", 0)
    if gamma.shape != v.shape[params:] or beta.shape != gamma.shape:
        raise BadGraph(f"{node.name}: gamma of LayerNorm is {gamma.shape}, the axes are {v.shape[params:]}")
    axes = tuple(range(begin, v.ndim))
    mean, var = v.mean(axis=axes, keepdims=True), v.var(axis=axes, keepdims=True)
    return [(v - mean) / np.sqrt(var + node.attrs.get("epsilon", 1e-7)) * gamma + beta, mean, var]


def _layout(node: Node, expected: str) -> None:
    if node.input_descs[0].format != expected or node.attrs.get("data_format", expected) != expected:
        raise BadGraph(
            f"{node.name}: {node.type} has data_format {node.attrs.get('data_format')} on {node.input_descs[0]}"
        )


def _instance_norm(node: Node, x: Arrays) -> list[np.ndarray]:
    v, gamma, beta = x
    _layout(node, "NCHW")
    axes = tuple(range(2, v.ndim))
    mean, var = v.mean(axis=axes, keepdims=True), v.var(axis=axes, keepdims=True)
    wide = (-1, *(1,) * (v.ndim - 2))
    y = (v - mean) / np.sqrt(var + node.attrs.get("epsilon", 1e-6)) * gamma.reshape(wide) + beta.reshape(wide)
    return [y, mean, var]


def _batch_norm(node: Node, x: Arrays) -> list[np.ndarray]:
    v, scale, offset, mean, var = x
    if node.attrs.get("is_training", True):
        raise BadGraph(f"{node.name}: BatchNorm in training mode")
    _layout(node, "NCHW")
    s, o, m, r = (p.reshape(1, -1, 1, 1) for p in (scale, offset, mean, var))
    y = (v - m) / np.sqrt(r + node.attrs.get("epsilon", 1e-4)) * s + o
    return [y, mean, var, mean, var, np.zeros(1, np.float32)]


def _lrn(node: Node, x: Arrays) -> np.ndarray:
    a, v = node.attrs, x[0]
    _layout(node, "NCHW")
    r = a.get("depth_radius", 5)
    square = np.pad(v * v, ((0, 0), (r, r), (0, 0), (0, 0)))
    total = sum(square[:, k : k + v.shape[1]] for k in range(2 * r + 1))
    return v / (a.get("bias", 1.0) + a.get("alpha", 1.0) * total) ** a.get("beta", 0.5)


KERNELS: dict[str, Kernel] = {
    "BatchNorm": _batch_norm,
    "HardMax": _hard_max,
    "InstanceNorm": _instance_norm,
    "LRN": _lrn,
    "LayerNorm": _layer_norm,
    "LogSoftmaxV2": _log_softmax,
    "SoftmaxV2": _softmax,
}
