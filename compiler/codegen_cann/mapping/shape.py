"""Reshape, slice, concat, gather and other data movement as GE nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from occ.compiler.codegen_cann.graph.formats import occ_type
from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.mapping.chip import OPERANDS
from occ.compiler.codegen_cann.mapping.elementwise import bitcast, computing_type
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.window import pad, strided
from occ.compiler.ir.op import Op

Row = Callable[..., Any]


def through(e: Emitter, kind: str, x: Ref, run: Callable[[Ref], Ref], position: int = 0) -> Ref:
    """A data movement on a type that the GE operator supports; DOUBLE may be moved as INT64."""
    if x.dtype == "DOUBLE" and not e.unit_for(kind, x.dtype, position):
        return bitcast(e, through(e, kind, bitcast(e, x, "INT64"), run, position), x.dtype)
    inner = computing_type(e, kind, x.dtype, position)
    return e.cast(run(e.cast(x, inner)), x.dtype)


def _view(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    return e.op("Reshape", x, e.ints(e.type(op.result).shape), out=e.type(op.result))


def _squeeze(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    out = e.type(op.result)
    given = e.known(op, 1)
    axes = [k for k, d in enumerate(x.shape) if d == 1] if given is None else [int(k) % len(x.shape) for k in given]
    return e.op("Squeeze", x, out=out, axis=sorted(axes)) if axes else e.op("Identity", x)


def _unsqueeze(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    out, axes = e.type(op.result), e.known(op, 1)
    assert axes is not None, "Unsqueeze has axes"
    listed = sorted(int(k) % len(out.shape) for k in axes.reshape(-1))
    return e.op("Unsqueeze", x, out=out, axes=listed) if listed else e.op("Identity", x)


def _transpose(e: Emitter, op: Op, x: Ref) -> Ref:
    perm = [int(k) % len(x.shape) for k in op.attrs.get("perm", tuple(range(len(x.shape)))[::-1])]
    return through(
        e,
        "Transpose",
        x,
        lambda v: e.op("Transpose", v, e.ints(perm, np.int32), out=Desc(v.dtype, tuple(v.shape[p] for p in perm))),
    )


def _expand(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    return broadcast(e, x, e.type(op.result).shape)


def broadcast(e: Emitter, x: Ref, shape: Sequence[int]) -> Ref:
    """`x` broadcast to a shape.

    BroadcastTo has AI Core kernels only for some types; Tile, on the AI CPU, for all.
    """
    out = tuple(shape)
    if e.unit_for("BroadcastTo", x.dtype) == "AI Core" and x.dtype != "BOOL":  # missing in the header of BroadcastTo
        return e.op("BroadcastTo", x, e.ints(out), out=Desc(x.dtype, out))
    full = (1,) * (len(out) - len(x.shape)) + x.shape
    times = [n // max(d, 1) for n, d in zip(out, full, strict=True)]
    return through(e, "Tile", e.reshape(x, full), lambda v: e.op("Tile", v, e.ints(times), out=Desc(v.dtype, out)))


def _tile(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    times = e.known(op, 1)
    assert times is not None, "Tile has repeats"
    shape = e.type(op.result).shape
    return through(e, "Tile", x, lambda v: e.op("Tile", v, e.ints(times.reshape(-1)), out=Desc(v.dtype, shape)))


def sliced(
    e: Emitter, x: Ref, begin: Sequence[int], end: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> Ref:
    """A strided slice over some axes; begins and ends as numpy takes them, after clamping."""
    shape = list(x.shape)
    for b, f, k, s in zip(begin, end, axes, steps, strict=True):
        shape[k] = len(range(x.shape[k])[slice(b, None if s < 0 and f < -x.shape[k] else f, s)])
    out = Desc(computing_type(e, "StridedSliceV2", x.dtype), tuple(shape))
    return e.cast(strided(e, e.cast(x, out.dtype), begin, end, axes, steps, out), x.dtype)


def _slice(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    starts, ends, axes, steps = (e.known(op, k) for k in (1, 2, 3, 4))
    assert starts is not None, "Slice has starts"
    assert ends is not None, "Slice has ends"
    where = [int(k) % len(x.shape) for k in axes] if axes is not None else list(range(len(starts)))
    step = [int(s) for s in steps] if steps is not None else [1] * len(starts)
    begin: list[int] = []
    end: list[int] = []
    for b, f, k, s in zip(starts, ends, where, step, strict=True):
        r = range(x.shape[k])[slice(int(b), int(f) if int(f) >= -x.shape[k] or s > 0 else None, s)]
        # The element before the first would be -1 in a backward slice, which would mean the last one.
        begin.append(r.start)
        end.append(r.stop if r.stop >= 0 else -x.shape[k] - 1)
    return sliced(e, x, begin, end, where, step)


def joined(e: Emitter, xs: Sequence[Ref], axis: int) -> Ref:
    """A concatenation along an axis, as a tree of nodes if there are too many operands for one."""
    if len(xs) == 1:
        return xs[0]
    if len(xs) > OPERANDS:
        return joined(e, [joined(e, xs[k : k + OPERANDS], axis) for k in range(0, len(xs), OPERANDS)], axis)
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    inner = computing_type(e, "ConcatD", xs[0].dtype)
    cast = [e.cast(x, inner) for x in xs]
    return e.cast(e.op("ConcatD", cast, out=Desc(inner, tuple(shape)), concat_dim=axis, N=len(xs)), xs[0].dtype)


def _concat(e: Emitter, op: Op, *xs: Ref) -> Ref:
    axis = op.a.axis % len(xs[0].shape)
    kept = [x for x in xs if x.shape[axis] != 0]
    made = joined(e, kept or xs[:1], axis)
    return e.op("Identity", made) if len(kept) < 2 else made


def _split(e: Emitter, op: Op, x: Ref, *_: Any) -> tuple[Ref, ...]:
    axis = op.a.axis % len(x.shape)
    shapes = [e.type(r).shape for r in op.results]
    sizes = [s[axis] for s in shapes]
    if len(sizes) == 1:
        return (e.op("Identity", x),)
    inner = computing_type(e, "SplitV", x.dtype)
    return tuple(e.cast(r, x.dtype) for r in split(e, e.cast(x, inner), sizes, axis))


def split(e: Emitter, x: Ref, sizes: Sequence[int], axis: int) -> list[Ref]:
    """The parts of a tensor of given sizes along an axis; where there are many, in two steps."""
    if len(sizes) == 1:
        return [x]
    if len(sizes) > OPERANDS:
        per = -(-len(sizes) // OPERANDS)
        groups = [sizes[k : k + per] for k in range(0, len(sizes), per)]
        parts = split(e, x, [sum(g) for g in groups], axis)
        return [r for part, group in zip(parts, groups, strict=True) for r in split(e, part, group, axis)]
    outs = [Desc(x.dtype, (*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in sizes]
    where = e.constant(np.array(axis, np.int32))
    return list(e.op("SplitV", x, e.ints(sizes), where, out=outs, num_split=len(sizes)))


def gathered(e: Emitter, x: Ref, at: np.ndarray, axis: int) -> Ref:
    """The elements at constant positions along an axis."""
    shape = (*x.shape[:axis], len(at), *x.shape[axis + 1 :])
    inner = computing_type(e, "GatherV2", x.dtype)
    where = e.constant(np.array(axis, np.int32))
    return e.cast(e.op("GatherV2", e.cast(x, inner), e.constant(at), where, out=Desc(inner, shape)), x.dtype)


def _pad(e: Emitter, op: Op, x: Ref, *_: Any) -> Ref:
    pads, axes = e.known(op, 1), e.known(op, 3)
    assert pads is not None, "Pad has pads"
    value = e.ref(op.operands[2]) if len(op.operands) > 2 and op.operands[2] is not None else None
    rank = len(x.shape)
    where = [int(k) % rank for k in axes] if axes is not None else list(range(rank))
    begins, ends = [0] * rank, [0] * rank
    for k, b, f in zip(where, pads[: len(where)], pads[len(where) :], strict=True):
        begins[k], ends[k] = int(b), int(f)
    return placed(e, x, begins, ends, op.a.mode, value)


def placed(
    e: Emitter, x: Ref, begins: Sequence[int], ends: Sequence[int], mode: str = "constant", value: Ref | None = None
) -> Ref:
    """`x` with pads at the begin and end of every axis; negative ones crop."""
    if min([*begins, *ends], default=0) < 0:
        x = _cut(e, x, begins, ends)
        begins, ends = ([max(p, 0) for p in side] for side in (begins, ends))
    shape = [d + b + f for d, b, f in zip(x.shape, begins, ends, strict=True)]
    if value is not None and value.shape:
        value = e.reshape(value, ())
    if mode == "wrap":
        return _wrapped(e, x, begins, ends)
    if not any([*begins, *ends]):
        return e.op("Identity", x)
    inner = computing_type(e, "PadV3", x.dtype)
    fill = e.cast(value, inner) if value is not None else None
    return e.cast(pad(e, e.cast(x, inner), begins, ends, shape, mode, fill), x.dtype)


def _cut(e: Emitter, x: Ref, begins: Sequence[int], ends: Sequence[int]) -> Ref:
    begin = [max(-b, 0) for b in begins]
    end = [d - max(-f, 0) for d, f in zip(x.shape, ends, strict=True)]
    return sliced(e, x, begin, end, range(len(begin)), [1] * len(begin))


def _wrapped(e: Emitter, x: Ref, begins: Sequence[int], ends: Sequence[int]) -> Ref:
    for k, (b, f) in enumerate(zip(begins, ends, strict=True)):
        size = x.shape[k]
        if not b and not f:
            continue
        x = gathered(e, x, np.arange(-b, size + f) % size, k)
    return x


def _space(kind: str) -> Row:
    def row(e: Emitter, op: Op, x: Ref) -> Ref:
        if kind == "SpaceToDepth" and getattr(op.a, "mode", "DCR") == "CRD":
            b, (n, c, h, w) = op.a.blocksize, x.shape
            apart = e.transpose(e.reshape(x, (n, c, h // b, b, w // b, b)), [0, 1, 3, 5, 2, 4])
            return e.reshape(apart, (n, c * b * b, h // b, w // b))
        mode = {"mode": op.a.mode} if kind == "DepthToSpace" else {}
        out = Desc(x.dtype, e.type(op.result).shape, "NCHW")
        made = e.op(kind, x, out=out, block_size=op.a.blocksize, data_format="NCHW", **mode)
        made.node.formats = {"x": "NCHW"}
        return made

    return row


def _trilu(e: Emitter, op: Op, x: Ref, k: Ref | None = None) -> Ref:
    shift = e.scalar(0, "INT64") if k is None else k
    right = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]  # distance of an element right of the diagonal
    if shift.node.type == "Const":
        by = int(shift.node.value.reshape(-1)[0])
        mask = e.constant(right >= by if op.a.upper else right <= by)
    else:
        sides = (e.constant(right), e.reshape(shift, ()))
        mask = e.op("GreaterEqual", *(sides if op.a.upper else reversed(sides)), out=Desc("BOOL", right.shape))
    inner = computing_type(e, "SelectV2", x.dtype, 1)
    made = e.op("SelectV2", mask, e.cast(x, inner), e.scalar(0, inner), out=Desc(inner, x.shape))
    return e.cast(made, x.dtype)


def _range(e: Emitter, op: Op, *xs: Ref | None) -> Ref:
    known = [e.known(op, k) for k in range(3)]
    start, limit, delta = (v.reshape(-1)[0] for v in known if v is not None)
    made = np.arange(start, limit, delta)
    return e.constant(made.astype(start.dtype))


def _constant_of_shape(e: Emitter, op: Op, *_: Any) -> Ref:
    out = e.type(op.result)
    value = op.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    inner = computing_type(e, "Fill", out.dtype, 1)
    made = e.op("Fill", e.ints(out.shape), e.cast(e.constant(fill.reshape(())), inner), out=Desc(inner, out.shape))
    return e.cast(made, out.dtype)


def _shape(e: Emitter, op: Op, x: Ref) -> Ref:
    size = op.a
    stop = len(x.shape) if size.end is None else size.end
    return e.ints(list(x.shape)[size.start or 0 : stop])


def _size(e: Emitter, op: Op, x: Ref) -> Ref:
    return e.constant(np.array(np.prod(x.shape, dtype=np.int64), np.int64))


def _reverse_sequence(e: Emitter, op: Op, x: Ref, lengths: Ref) -> Ref:
    axes = {"seq_dim": op.a.time_axis, "batch_dim": op.a.batch_axis}
    return through(e, "ReverseSequence", x, lambda v: e.op("ReverseSequence", v, lengths, out=v.desc, **axes))


def _eye_like(e: Emitter, op: Op, x: Ref) -> Ref:
    out = e.type(op.result)
    return e.constant(np.eye(*out.shape, k=op.a.k or 0, dtype=occ_type(out.dtype).numpy))


ROWS: dict[str, Row] = {
    "Concat": _concat, "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _space("DepthToSpace"), "Expand": _expand, "EyeLike": _eye_like, "Flatten": _view, 
    "Pad": _pad, "Range": _range,
    "Reshape": _view, "ReverseSequence": _reverse_sequence, "Shape": _shape, "Size": _size, "Slice": _slice,
    "SpaceToDepth": _space("SpaceToDepth"), "Split": _split, "Squeeze": _squeeze, "Tile": _tile,
    "Transpose": _transpose, "Trilu": _trilu,
    "Unsqueeze": _unsqueeze, "legacy.Align": _view,
}  # fmt: skip
