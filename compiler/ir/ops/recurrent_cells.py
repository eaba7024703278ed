"""Cells of RNN, GRU and LSTM: one step, from the previous state to the next."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from occ.compiler.ir.op import Value
from occ.runtime.dataclass import dataclass

# name -> (builder, x, alpha, beta) -> result, and the defaults of alpha and beta (ONNX RNN, "Activation functions")
ACTIVATIONS: dict[str, tuple[Callable[..., Any], float, float]] = {
    "relu": (lambda b, x, p, q: b.Relu(x), 0, 0),
    "tanh": (lambda b, x, p, q: b.Tanh(x), 0, 0),
    "sigmoid": (lambda b, x, p, q: b.Sigmoid(x), 0, 0),
    "affine": (lambda b, x, p, q: b.Add(b.Mul(x, constant_like(b, x, p)), constant_like(b, x, q)), 1.0, 0),
    "leakyrelu": (lambda b, x, p, q: b.LeakyRelu(x, alpha=p), 0.01, 0),
    "thresholdedrelu": (lambda b, x, p, q: b.ThresholdedRelu(x, alpha=p), 1.0, 0),
    "scaledtanh": (
        lambda b, x, p, q: b.Mul(b.Tanh(b.Mul(x, constant_like(b, x, q))), constant_like(b, x, p)),
        1.0,
        1.0,
    ),
    "hardsigmoid": (lambda b, x, p, q: b.HardSigmoid(x, alpha=p, beta=q), 0.2, 0.5),
    "elu": (lambda b, x, p, q: b.Elu(x, alpha=p), 1.0, 0),
    "softsign": (lambda b, x, p, q: b.Softsign(x), 0, 0),
    "softplus": (lambda b, x, p, q: b.Softplus(x), 0, 0),
}


def constant_like(b: Any, x: Value, number: float) -> Value:
    return b.constant(number, x.tensor.dtype)


@dataclass(frozen=True)
class Cell:
    """The cell of a recurrent operator: its gates, states and activations.

    Attributes:
        gates: the number of gates, which share the weights.
        states: tensors passed from step to step; the first is the result of the step.
        defaults: activations of one direction.
        step: `(builder, gates of the input, states, weights, activations, attributes) -> states`.
    """

    gates: int
    states: int
    defaults: tuple[str, ...]
    step: Callable[..., tuple[Value, ...]]


@dataclass(frozen=True)
class CellWeights:
    """Weights of one direction: recurrence [h, gates * h], its bias, peepholes [3, h]; scale and zero point of codes."""

    r: Value
    bias: Value | None
    peephole: Value | None
    scale: Value | None = None
    zero: Value | None = None


@dataclass(frozen=True)
class Codes:
    """Weights as integers, `[directions, inputs, gates * h]`: scales and zero points of W and of R, `[directions, ...]`."""

    w_scale: Value
    w_zero: Value
    r_scale: Value
    r_zero: Value


def gate_product(b, x, w, scale=None, zero=None):
    """`x @ w`; for quantised weights, `x` is quantised by its range."""
    return b.MatMul(x, w) if scale is None else b.op("com.microsoft.DynamicQuantizeMatMul", x, w, scale, zero)


def _rnn(b, x, states, w, act, a):
    return (act[0](_clipped(b, b.Add(x, _plus_bias(b, b.MatMul(states[0], w.r), w.bias)), a)),)


def _gru(b, x, states, w, act, a):
    (h,) = states
    xz, xr, xh = split_gates(b, x, 3)
    rz, rr, rh = split_gates(b, w.r, 3)
    bz, br, bh = (None,) * 3 if w.bias is None else split_gates(b, w.bias, 3)
    z = act[0](_clipped(b, b.Add(xz, _plus_bias(b, b.MatMul(h, rz), bz)), a))
    r = act[0](_clipped(b, b.Add(xr, _plus_bias(b, b.MatMul(h, rr), br)), a))
    if a.linear_before_reset:
        inner = b.Mul(r, _plus_bias(b, b.MatMul(h, rh), bh))
    else:
        inner = _plus_bias(b, b.MatMul(b.Mul(r, h), rh), bh)
    new = act[1](_clipped(b, b.Add(xh, inner), a))
    return (b.Add(b.Mul(b.Sub(constant_like(b, z, 1), z), new), b.Mul(z, h)),)


def _lstm(b, x, states, w, act, a):
    h, c = states
    i, o, f, g = split_gates(b, b.Add(x, _plus_bias(b, gate_product(b, h, w.r, w.scale, w.zero), w.bias)), 4)
    pi, po, pf = (None,) * 3 if w.peephole is None else split_gates(b, w.peephole, 3)
    i = act[0](_clipped(b, _peep(b, i, pi, c), a))
    f = b.Sub(constant_like(b, i, 1), i) if a.input_forget else act[0](_clipped(b, _peep(b, f, pf, c), a))
    new = b.Add(b.Mul(f, c), b.Mul(i, act[1](_clipped(b, g, a))))
    o = act[0](_clipped(b, _peep(b, o, po, new), a))
    return b.Mul(o, act[2](new)), new


def _peep(b, gate, weight, c):
    return gate if weight is None else b.Add(gate, b.Mul(weight, c))


def _plus_bias(b, x, bias):
    return x if bias is None else b.Add(x, bias)


def _clipped(b, x, a):
    return x if a.clip is None else b.Clip(x, constant_like(b, x, -a.clip), constant_like(b, x, a.clip))


def split_gates(b, x, n: int):
    """`x` in `n` equal parts along its last axis."""
    return b.Split(x, axis=-1, num_outputs=n, n_results=n)


CELLS = {
    "RNN": Cell(1, 1, ("Tanh",), _rnn),
    "GRU": Cell(3, 1, ("Sigmoid", "Tanh"), _gru),
    "LSTM": Cell(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm),
}
