"""LSTM and GRU as the GE kernels DynamicRNN and DynamicGRUV2.

Operators with attributes that the kernels lack have been expanded already.

The gates of DynamicRNN are in the order i, j, f, o (j is ONNX's c), with the input weights above the state weights;
those of DynamicGRUV2 are in ONNX's order. Both compute products in half precision with FLOAT sums, forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.graph.kernels import KernelTable
from occ.compiler.codegen_cann.mapping.chip import HALF_MODES
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported
from occ.compiler.codegen_cann.mapping.shape import joined
from occ.compiler.codegen_cann.mapping.window import strided
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.types import TensorType

Row = Callable[..., Any]
_KERNELS = {"LSTM": "DynamicRNN", "GRU": "DynamicGRUV2"}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}
_FEWEST_STEPS = 2  # with fewer steps, the unrolled form is no larger


def fits(op: Op, table: KernelTable, precision: str) -> bool:
    """Whether the GE kernels support an LSTM or GRU: constant weights, no peepholes, lengths, clips or activations."""
    kernel = _KERNELS[op.name]
    if not any(k.unit == "AI Core" for k in table.kernels(kernel)):
        return False
    a, (x, *weights), rest = op.a, op.operands[:3], [*op.operands[3:], *[None] * 5]
    plain = [*_ACTIVATIONS[op.name]] * (2 if a.direction == "bidirectional" else 1)
    given = [*(a.activations or plain)]
    if given != plain or a.activation_alpha or a.activation_beta or a.clip is not None or a.layout:
        return False
    if op.name == "LSTM" and (a.input_forget or rest[4] is not None):  # peepholes
        return False
    if op.name == "GRU" and not a.linear_before_reset:  # the kernel only applies the reset gate after the product
        return False
    constant = all(isinstance(w, Weight) for w in (*weights, rest[0]) if w is not None)
    if not constant or rest[1] is not None or x is None or not isinstance(x.type, TensorType) or x.type.shape is None:
        return False
    steps, dtype = x.tensor.dims[0], x.tensor.dtype.name
    half = dtype == "f16" or (dtype == "f32" and precision in HALF_MODES)
    return half and not (isinstance(steps, int) and steps < _FEWEST_STEPS)


def _lstm(
    e: Emitter, op: Op, x: Ref, w: Ref, r: Ref, b: Ref | None = None, _: Ref | None = None, *states: Ref | None
) -> tuple[Ref, ...]:
    h, c = (*states, None, None)[:2]

    def run(forward: Ref, k: int) -> tuple[Ref, Ref]:
        size = r.shape[2]
        both = np.concatenate([_gates(w, k, 4, (0, 3, 2, 1)), _gates(r, k, 4, (0, 3, 2, 1))])
        bias = np.zeros(4 * size) if b is None else _bias(b, k, 4, (0, 3, 2, 1)).sum(0)
        steps = Desc("FLOAT", (*x.shape[:2], size))
        halves = Desc("FLOAT16", steps.shape)
        made = e.op(
            "DynamicRNN", forward, e.constant(both.astype(np.float16)), e.constant(bias.astype(np.float32)), None,
            _state(e, h, k, "FLOAT16"), _state(e, c, k, "FLOAT"), out=[steps, halves, *[steps] * 6], is_training=False,
        )  # fmt: skip
        return made[0], made[2]

    return _directions(e, op, x, run)


def _gru(
    e: Emitter, op: Op, x: Ref, w: Ref, r: Ref, b: Ref | None = None, _: Ref | None = None, h: Ref | None = None
) -> tuple[Ref, ...]:
    def run(forward: Ref, k: int) -> tuple[Ref, Ref]:
        order, size = (0, 1, 2), r.shape[2]
        biases = np.zeros((2, 3 * size)) if b is None else _bias(b, k, 3, order)
        steps = Desc("FLOAT", (*x.shape[:2], size))
        made = e.op(
            "DynamicGRUV2", forward, *(e.constant(_gates(v, k, 3, order).astype(np.float16)) for v in (w, r)),
            *(e.constant(v.astype(np.float32)) for v in biases), None, _state(e, h, k, "FLOAT"), out=[steps] * 6,
            is_training=False,
        )  # fmt: skip
        return made[0], made[0]

    return _directions(e, op, x, run)


def _gates(w: Ref, k: int, count: int, order: Sequence[int]) -> np.ndarray:
    """The weights of a direction, `[inputs, gates * h]`, with the gates in a given order."""
    parts = np.split(_values(w)[k].astype(np.float32), count)
    most = float(np.finfo(np.float16).max)
    return np.clip(np.concatenate([parts[g] for g in order]).T, -most, most)


def _bias(b: Ref, k: int, count: int, order: Sequence[int]) -> np.ndarray:
    """The biases of a direction, of the input and of the state: `[2, gates * h]`."""
    parts = _values(b)[k].astype(np.float32).reshape(2, count, -1)
    return parts[:, list(order)].reshape(2, -1)


def _values(v: Ref) -> np.ndarray:
    if v.node.type != "Const":
        raise Unsupported("its weights are computed at run time")
    return v.node.value


def _state(e: Emitter, state: Ref | None, k: int, dtype: str) -> Ref | None:
    """The initial state of a direction, `[1, batch, h]`."""
    if state is None:
        return None
    if state.shape[0] > 1:
        state = strided(e, state, [k], [k + 1], [0], [1], Desc(state.dtype, (1, *state.shape[1:])))
    return e.cast(state, dtype)


def _directions(e: Emitter, op: Op, x: Ref, run: Callable[[Ref, int], tuple[Ref, Ref]]) -> tuple[Ref, ...]:
    """The results of all directions: every step `[steps, directions, batch, h]`, and the final states."""
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[op.a.direction]
    given, found = e.cast(x, "FLOAT16"), [list[Ref](), list[Ref](), list[Ref]()]
    for k, backwards in enumerate(ways):
        y, c = run(_turned(e, given) if backwards else given, k)
        last = [_last(e, v) for v in (y, c)]
        steps, batch, size = y.shape
        all_steps = _turned(e, y) if backwards else y
        for into, v in zip(found, (e.reshape(all_steps, (steps, 1, batch, size)), *last), strict=True):
            into.append(v)
    made = joined(e, found[0], 1), *(joined(e, v, 0) for v in found[1:])
    return tuple(e.cast(v, x.dtype) for v in made[: len(op.results)])


def _turned(e: Emitter, v: Ref) -> Ref:
    return e.op("ReverseV2", v, e.ints([0], np.int32), out=v.desc)


def _last(e: Emitter, v: Ref) -> Ref:
    steps = v.shape[0]
    return strided(e, v, [steps - 1], [steps], [0], [1], Desc(v.dtype, (1, *v.shape[1:])))


ROWS: dict[str, Row] = {"GRU": _gru, "LSTM": _lstm}
