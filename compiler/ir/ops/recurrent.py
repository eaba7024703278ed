"""RNN, GRU and LSTM: one product for all inputs, then a Scan over the steps.

A step past the end of its sequence (`sequence_lens`) keeps the state and outputs zeros, in either direction.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.recurrent_cells import (
    ACTIVATIONS,
    CELLS,
    Cell,
    CellWeights,
    Codes,
    constant_like,
    gate_product,
    split_gates,
)
from occ.compiler.ir.shape import equal_dims, equal_shapes
from occ.compiler.ir.types import TensorType

_UNROLLED = 2  # steps unrolled without a loop


def fit_operand(name: str, x: TensorType | None, wanted: Sequence[Dim]) -> None:
    """Require a shape of an optional operand, as `equal_shapes` does."""
    if x is not None:
        equal_shapes(x.shape, wanted, name)


def fit_hidden_size(a, hidden: Dim) -> None:
    """Require that the attribute `hidden_size`, if stated, matches the weights."""
    if a.hidden_size is not None:
        equal_dims(hidden, a.hidden_size, "`hidden_size` and the columns of R")


def _infer(cell: Cell, x, w, r, bias, lens, initial, peephole, a):
    if (x.rank, w.rank, r.rank) != (3, 3, 3):
        raise Invalid(f"X, W and R have rank 3, not {x.rank}, {w.rank} and {r.rank}")
    directions = 2 if a.direction == "bidirectional" else 1
    hidden = r.shape[2]
    fit_hidden_size(a, hidden)
    steps, batch = (x.shape[1], x.shape[0]) if a.layout else (x.shape[0], x.shape[1])
    gates, state = cell.gates * hidden, (batch, directions, hidden) if a.layout else (directions, batch, hidden)
    fit_operand("W", w, (directions, gates, x.shape[2]))
    fit_operand("R", r, (directions, gates, hidden))
    fit_operand("B", bias, (directions, 2 * gates))
    fit_operand("sequence_lens", lens, (batch,))
    fit_operand("P", peephole, (directions, 3 * hidden))
    for v in initial:
        fit_operand("an initial state", v, state)
    if a.layout:
        y, last = (batch, steps, directions, hidden), (batch, directions, hidden)
    else:
        y, last = (steps, directions, batch, hidden), (directions, batch, hidden)
    return (TensorType(x.dtype, y), *[TensorType(x.dtype, last)] * cell.states)


def _composite(
    cell: Cell, b, x, w, r, bias, lens, initial: Sequence[Value | None], peephole, a, codes: Codes | None = None
):
    if a.layout:
        x = b.Transpose(x, perm=(1, 0, 2))
        initial = [v and b.Transpose(v, perm=(1, 0, 2)) for v in initial]
    valid = None if lens is None else _valid(b, x.tensor.dims[0], lens)
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(a.direction)
    if backwards is None:
        raise Invalid(f"`direction` cannot be `{a.direction}`", code="OCC0107")
    runs = []
    for d, back in enumerate(backwards):
        quant = (None,) * 4 if codes is None else (codes.w_scale, codes.w_zero, codes.r_scale, codes.r_zero)
        pieces = [_direction(b, v, d) for v in (w, r, bias, peephole, *quant)]
        if codes is None:
            pieces[:2] = [b.Transpose(v, perm=(1, 0)) for v in pieces[:2]]
        hidden = r.tensor.dims[2 if codes is None else 1]
        states = [_zeros(b, x, hidden) if v is None else _direction(b, v, d) for v in initial]
        runs.append(_run(cell, b, x, pieces, states, valid, _activations(cell, a, d), a, back))
    y = _joined(b, [ys for ys, _ in runs], 1)
    last = [_joined(b, list(values), 0) for values in zip(*(states for _, states in runs), strict=True)]
    if a.layout:
        y, last = b.Transpose(y, perm=(2, 0, 1, 3)), [b.Transpose(v, perm=(1, 0, 2)) for v in last]
    return (y, *last)


def _joined(b, values: list[Value], axis: int):
    axes = b.constant([axis], I64)
    return b.Concat(*(b.Unsqueeze(v, axes) for v in values), axis=axis)


def _direction(b, v, d: int):
    return None if v is None else b.Gather(v, b.constant(d, I64), axis=0)


def _zeros(b, x, hidden: Dim):
    shape: tuple[Dim, ...] = (x.tensor.dims[1], hidden)
    return b.Expand(b.constant(0, x.tensor.dtype), b.dims(values=shape, shape=(2,)))


def _valid(b, steps: Dim, lens: Value):
    """Whether a step is within its sequence, bool[steps, batch, 1]."""
    limit = b.dims(values=(steps,), shape=())
    times = b.Range(b.constant(0, I64), limit, b.constant(1, I64))
    times = b.Unsqueeze(times, b.constant([1, 2], I64))
    return b.Less(times, b.Unsqueeze(b.Cast(lens, to=I64), b.constant([0, 2], I64)))


def _activations(cell: Cell, a, d: int):
    names = a.activations or cell.defaults * (d + 1)
    at = d * len(cell.defaults)
    if len(names) < at + len(cell.defaults):
        raise Invalid(f"`activations` has {len(names)} names, of {at + len(cell.defaults)}", code="OCC0107")
    alphas, betas = iter(a.activation_alpha or ()), iter(a.activation_beta or ())
    made = []
    for k, name in enumerate(names):
        if name.lower() not in ACTIVATIONS:
            raise Invalid(f"the activation `{name}` is unknown", code="OCC0107")
        fn, alpha, beta = ACTIVATIONS[name.lower()]
        p = next(alphas, alpha) if alpha or beta else alpha  # only functions with parameters use them
        q = next(betas, beta) if name.lower() in ("affine", "scaledtanh", "hardsigmoid") else beta
        if at <= k < at + len(cell.defaults):
            made.append(lambda b, fn=fn, p=p, q=q: lambda x: fn(b, x, p, q))
    return made


def _run(cell: Cell, b, x, pieces, states, valid, activations, a, backwards: bool):
    """One direction: the results of all steps [steps, batch, h], and the last states."""
    w, r, bias, peephole, w_scale, w_zero, r_scale, r_zero = pieces
    given = gate_product(b, x, w, w_scale, w_zero)
    of_r = None
    if bias is not None:
        of_w, of_r = split_gates(b, bias, 2)
        if cell.gates == 3 and a.linear_before_reset:
            given = b.Add(given, of_w)
        else:
            given, of_r = b.Add(given, b.Add(of_w, of_r)), None
    weights = [r, of_r, peephole, r_scale, r_zero]

    def step(inner, current, slices, captured):
        act = [make(inner) for make in activations]
        new = cell.step(inner, slices[0], current, CellWeights(*captured), act, a)
        if valid is None:
            return (*new, new[0])
        kept = [inner.Where(slices[1], n, old) for n, old in zip(new, current, strict=True)]
        return (*kept, inner.Where(slices[1], new[0], constant_like(inner, new[0], 0)))

    sequences = [given] if valid is None else [given, valid]
    steps = x.tensor.dims[0]
    if isinstance(steps, int) and 0 < steps <= _UNROLLED:
        return _unrolled(b, step, states, sequences, weights, steps, backwards)
    return _scanned(b, step, states, sequences, weights, backwards)


def _unrolled(b, step, states, sequences, weights, steps: int, backwards: bool):
    results: list[Value] = []
    for k in reversed(range(steps)) if backwards else range(steps):
        *states, y = step(b, states, [b.Gather(s, b.constant(k, I64), axis=0) for s in sequences], weights)
        results.append(y)
    return _joined(b, results[::-1] if backwards else results, 0), states


def _scanned(b, step, states, sequences, weights, backwards: bool):
    captured = [v for v in weights if v is not None]
    slices = [TensorType(s.tensor.dtype, s.tensor.dims[1:]) for s in sequences]
    types = [*(s.tensor for s in states), *slices, *(v.tensor for v in captured)]

    def body(inner, *args):
        n, m = len(states), len(states) + len(sequences)
        rest = iter(args[m:])
        return step(inner, args[:n], args[n:m], [v and next(rest) for v in weights])

    y = TensorType(states[0].tensor.dtype, (sequences[0].tensor.dims[0], *states[0].tensor.dims))
    directions = {"scan_input_directions": (1,) * len(sequences), "scan_output_directions": (1,)} if backwards else {}
    *last, results = b.call_body(
        "Scan", [*states, *sequences], captured, types, body, [*(s.tensor for s in states), y],
        num_scan_inputs=len(sequences), **directions,
    )  # fmt: skip
    return results, last


def quantized_lstm(b, x, w, r, bias, lens, initial: Sequence[Value | None], peephole, codes: Codes, a):
    """An LSTM with quantised products; `w` and `r` are `[directions, inputs, 4 * h]`."""
    return _composite(CELLS["LSTM"], b, x, w, r, bias, lens, initial, peephole, a, codes)


@op("RNN")
class RNN:
    """`h' = f(x W + h R + b)`."""

    def infer(x, w, r, bias=None, lens=None, h=None, *, a):
        return _infer(CELLS["RNN"], x, w, r, bias, lens, [h], None, a)

    def composite(b, x, w, r, bias=None, lens=None, h=None, *, a):
        return _composite(CELLS["RNN"], b, x, w, r, bias, lens, [h], None, a)


@op("GRU")
class GRU:
    """Gates z, r, h."""

    def infer(x, w, r, bias=None, lens=None, h=None, *, a):
        return _infer(CELLS["GRU"], x, w, r, bias, lens, [h], None, a)

    def composite(b, x, w, r, bias=None, lens=None, h=None, *, a):
        return _composite(CELLS["GRU"], b, x, w, r, bias, lens, [h], None, a)


@op("LSTM")
class LSTM:
    """Gates i, o, f, c; peepholes i, o, f."""

    def infer(x, w, r, bias=None, lens=None, h=None, c=None, peephole=None, *, a):
        return _infer(CELLS["LSTM"], x, w, r, bias, lens, [h, c], peephole, a)

    def composite(b, x, w, r, bias=None, lens=None, h=None, c=None, peephole=None, *, a):
        return _composite(CELLS["LSTM"], b, x, w, r, bias, lens, [h, c], peephole, a)


ALL: tuple[OpSpec, ...] = (RNN, GRU, LSTM)
