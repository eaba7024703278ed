"""Simulates DynamicRNN and DynamicGRUV2: all steps of an LSTM or a GRU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph, Node

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]
# Attribute values that the kernels support.
_ONLY: dict[str, Any] = {
    "direction": "UNIDIRECTIONAL", "cell_type": "LSTM", "cell_depth": 1, "use_peephole": False, "keep_prob": 1.0,
    "cell_clip": -1.0, "num_proj": 0, "time_major": True, "activation": "tanh", "forget_bias": 0.0, "reset_after": True,
}  # fmt: skip


def _check(node: Node) -> None:
    for name, value in _ONLY.items():
        if node.attrs.get(name, value) not in (value, int(value) if isinstance(value, bool) else value):
            raise BadGraph(f"{node.name}: `{name}` of {node.type} is {node.attrs[name]}, the kernel takes {value}")


def _half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _fit(node: Node, wanted: Sequence[tuple[str, Any, tuple[int, ...]]]) -> None:
    for name, v, shape in wanted:
        if v is not None and v.shape != shape:
            raise BadGraph(f"{node.name}: `{name}` of {node.type} is {list(v.shape)}, not {list(shape)}")


def _dynamic_rnn(node: Node, x: Arrays) -> list[np.ndarray]:
    """An LSTM: rows of inputs and states times `w` produce the gates i, j, f, o.

    The state passed on is in half precision.
    """
    _check(node)
    given: Arrays = [*x, *[None] * 10]
    v, w, b, lengths, h, c = given[:6]
    rest = given[6:]
    if lengths is not None or any(r is not None for r in rest):
        raise BadGraph(f"{node.name}: lengths, peepholes and masks are not simulated")
    if node.attrs.get("gate_order", "ijfo") not in ("ijfo", "ifjo"):
        raise BadGraph(f"{node.name}: gate_order {node.attrs['gate_order']}")
    steps, batch, inputs = v.shape
    size = w.shape[1] // 4
    _fit(
        node,
        [
            ("w", w, (inputs + size, 4 * size)),
            ("b", b, (4 * size,)),
            ("init_h", h, (1, batch, size)),
            ("init_c", c, (1, batch, size)),
        ],
    )
    h, c = (np.zeros((batch, size), np.float32) if s is None else s[0].astype(np.float32) for s in (h, c))
    found: list[list[np.ndarray]] = [[] for _ in range(8)]
    for t in range(steps):
        gates = np.concatenate([_half(v[t]), _half(h)], 1) @ _half(w) + b
        first, second, third, o = np.split(gates, 4, 1)
        j, f = (second, third) if node.attrs.get("gate_order", "ijfo") == "ijfo" else (third, second)
        i, j, f, o = _sigmoid(first), np.tanh(j), _sigmoid(f), _sigmoid(o)
        c = (f * c + i * j).astype(np.float32)
        h = o * np.tanh(c)
        for into, value in zip(found, (h, h, c, i, j, f, o, np.tanh(c)), strict=True):
            into.append(value)
    return [np.stack(s).astype(d.dtype) for s, d in zip(found, node.output_descs, strict=True)]


def _dynamic_gru(node: Node, x: Arrays) -> list[np.ndarray]:
    """A GRU with the reset gate after the product of the state: gates z, r, h."""
    _check(node)
    given: Arrays = [*x, *[None] * 7]
    v, w, r, wb, rb, lengths, h = given[:7]
    if lengths is not None or node.attrs.get("gate_order", "zrh") != "zrh":
        raise BadGraph(f"{node.name}: lengths, and other orders of the gates than zrh, are not simulated")
    steps, batch, inputs = v.shape
    size = w.shape[1] // 3
    biases = [("bias_input", wb, (3 * size,)), ("bias_hidden", rb, (3 * size,))]
    _fit(
        node,
        [
            ("weight_input", w, (inputs, 3 * size)),
            ("weight_hidden", r, (size, 3 * size)),
            *biases,
            ("init_h", h, (1, batch, size)),
        ],
    )
    h = np.zeros((batch, size), np.float32) if h is None else h[0].astype(np.float32)
    wb, rb = (np.zeros(3 * size, np.float32) if s is None else s for s in (wb, rb))
    found: list[list[np.ndarray]] = [[] for _ in range(6)]
    for t in range(steps):
        xz, xr, xh = np.split(_half(v[t]) @ _half(w) + wb, 3, 1)
        hz, hr, hh = np.split(_half(h) @ _half(r) + rb, 3, 1)
        z, reset = _sigmoid(xz + hz), _sigmoid(xr + hr)
        new = np.tanh(xh + reset * hh)
        h = ((1 - z) * new + z * h).astype(np.float32)
        for into, value in zip(found, (h, h, z, reset, new, hh), strict=True):
            into.append(value)
    return [np.stack(s).astype(d.dtype) for s, d in zip(found, node.output_descs, strict=True)]


KERNELS: dict[str, Kernel] = {"DynamicGRUV2": _dynamic_gru, "DynamicRNN": _dynamic_rnn}
