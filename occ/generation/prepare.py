"""Rewrites an exported decoder as one decoding step: tokens and caches in, logits and caches out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from occ.compiler.driver.source import load_module
from occ.compiler.frontend.onnx import import_model
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.dtype import I32, I64, DType
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.infer.infer_control import inline_branch
from occ.generation.names import IDS, LOGITS, MASK, POSITIONS, STARTS, is_cache, presents_of
from occ.runtime.errors import RunError

_WITH_PAST = "use_cache_branch"  # of optimum's merged decoders: whether the branch that reads the caches is taken
_AFTER_HEAD = ("Cast", "Mul", "Div", "Tanh", "Identity")  # ops allowed between the head and the logits
_HEADS = ("MatMul", "com.microsoft.MatMulNBits")
_CACHED = "com.microsoft.GroupQueryAttention"
_LAST_KEY, _AT, _BIAS = 5, 9, 10  # its operands: number of keys per sequence minus one; positions; bias of scores
_END = np.iinfo(np.int64).max


def prepared(
    path: Path, head: int = 0, *, batched: bool = False, adapter: Path | None = None, scored: int = 1
) -> Module:
    """The module of a decoder, for one sequence, or several that end at the same position of their caches.

    Mask and positions follow from the length of the caches, so they are no longer inputs, and the head is only computed
    for the last token, or for the last `scored` ones. For several sequences there is another input, `starts`, the
    position at which each of them begins, if the file can mask what precedes it.

    Args:
        path: of the file.
        head: head size, if the file leaves it open; 0 if unknown.
        batched: whether to leave the number of sequences open.
        adapter: the folder of a LoRA adapter to merge into the weights.
        scored: number of last tokens of a run for which the head is computed.

    Raises:
        CompileError: the file cannot be read.
        RunError: OCC0501 it is not a decoder, or has no open number of sequences.
    """
    m = load_module(path) if adapter is None else import_model(path, adapter=adapter)
    args = {a.name: a for a in m.main.args}
    if IDS not in args or LOGITS not in m.main.result_names:
        raise RunError(
            "OCC0501", f"`{path}` is not a decoder: it does not have the input `{IDS}` and the output `{LOGITS}`",
            "export the model for text generation, with past key values",
        )  # fmt: skip
    _needed_results(m)
    _at_least_one_token(m, args[IDS])
    count, length = args[IDS].tensor.dims if batched else (1, args[IDS].tensor.dims[1])
    if batched and isinstance(count, int):
        raise RunError(
            "OCC0501", f"`{path}` takes {count} text{'s' if count > 1 else ''} at a time, no other number",
            "export it with a dynamic batch, or leave out `num_beams`",
        )  # fmt: skip
    for a in m.main.args:
        if isinstance(a.type, TensorType) and a.type.shape:
            batch = 1 if a.name == POSITIONS and a.type.rank == 3 else 0  # after the three positions of an image
            a.type = TensorType(a.type.dtype, (*a.type.dims[:batch], count, *a.type.dims[batch + 1 :]))
    past = _one_past(m, head)
    _decide(m, args, past, (count, length))
    _last_tokens_only(m, scored)
    return m


def _needed_results(m: Module) -> None:
    """Reduce and reorder the outputs to the logits and the new state of each cache."""
    names = m.main.result_names
    kept = [LOGITS, *presents_of([a.name for a in m.main.args if is_cache(a.name)], names)]
    end = m.main.body.terminator
    Rewriter(m).replace_operands(end, [end.operands[names.index(name)] for name in kept])
    m.main.result_names = kept


def _at_least_one_token(m: Module, ids: Value) -> None:
    """State that there is a last token, so that its rows equal the number of sequences."""
    length = ids.tensor.dims[1]
    if isinstance(length, Sym) and length.is_symbol and (info := m.symbols[str(length)]).symbol.lo < 1:
        m.substitute({str(length): replace(info, symbol=replace(info.symbol, lo=1)).dim})


def _one_past(m: Module, head: int) -> Dim:
    """Give all caches the same length, and return it; 0 if there are none."""
    found: Dim = 0
    for a in m.main.args:
        if not is_cache(a.name):
            continue
        grows = [k for k, d in enumerate(a.tensor.dims) if k and not isinstance(d, int)]
        if not grows:
            continue
        k = grows[0]
        found = found if not isinstance(found, int) else a.tensor.dims[k]
        rest = [head if head and not isinstance(d, int) else d for d in a.tensor.dims[k + 1 :]]
        a.type = TensorType(a.tensor.dtype, (*a.tensor.dims[:k], found, *rest))
    return found


def _decide(m: Module, args: dict[str, Value], past: Dim, ids: tuple[Dim, Dim]) -> None:
    """Compute the mask and the positions instead of reading them, and support empty caches."""
    count, length = ids
    if _WITH_PAST in args:
        _read_caches(m, args[_WITH_PAST])
    first = m.main.body.first
    assert first is not None
    b = Rewriter(m).builder(first)
    starts = m.main.body.add_arg(TensorType(I64, (count,)), STARTS) if count != 1 and _can_pad(m, args) else None
    counted = None if starts is None else _counted(b, starts, past + length)
    if MASK in args:
        shape = b.dims(values=(count, past + length), shape=(2,))
        made = counted or b.ConstantOfShape(shape, value=np.ones(1, args[MASK].tensor.dtype.numpy))
        _replace(m, args[MASK], _as(b, made, args[MASK].tensor.dtype))
    start, sizes = b.dims(values=(past,), shape=(1,)), b.dims(values=(count, length), shape=(2,))
    at = b.positions(start if starts is None else b.Sub(start, starts), sizes)
    if POSITIONS in args:
        made = at
        if args[POSITIONS].tensor.rank == 3:  # time, height and width: a text advances all of them equally
            made = b.Expand(made, b.dims(values=(args[POSITIONS].tensor.dims[0], count, length), shape=(3,)))
        _replace(m, args[POSITIONS], _as(b, made, args[POSITIONS].tensor.dtype))
    if count != 1:
        for op in [op for op in m.walk() if op.name == _CACHED]:
            _of_several(m, op, past + length, None if starts is None else at, counted)


def _read_caches(m: Module, arg: Value) -> None:
    """Take the branch of a merged decoder that reads the caches."""
    branches = [op for op in arg.users if op.name == "If" and op.parent is m.main.body]
    _replace(m, arg, m.add_weight(arg.name, np.ones([1] * arg.tensor.rank, np.bool_)))
    for op in branches:
        inline_branch(m, op, "then_branch")


def _can_pad(m: Module, args: dict[str, Value]) -> bool:
    """Whether a sequence may begin after the first position of the caches.

    Earlier keys must be masked, and positions count from its start: the file has both as inputs, or leaves both to
    GroupQueryAttention.
    """
    kinds = [op for op in m.walk() if op.name == _CACHED]
    hidden, placed = bool(kinds) or MASK in args, POSITIONS in args or any(op.a.do_rotary for op in kinds)
    reached = all(op.parent is m.main.body for op in kinds)
    return hidden and placed and reached and any(is_cache(name) for name in args)


def _counted(b: GraphBuilder, starts: Value, total: Dim) -> Value:
    """Which cache positions hold a token of each sequence, `[count, total]`."""
    places = b.positions(b.constant(np.zeros(1, np.int64)), b.dims(values=(1, total), shape=(2,)))
    return b.GreaterOrEqual(places, b.Unsqueeze(starts, b.constant(np.array([1], np.int64))))


def _of_several(m: Module, op: Op, total: Dim, at: Value | None, counted: Value | None) -> None:
    """Make GroupQueryAttention append to all caches at one position, and attend to each sequence's own part."""
    b = Rewriter(m).builder(op)
    operands = [*op.operands, *[None] * (_BIAS + 1 - len(op.operands))]
    # not each one's length according to the mask, but the common one
    operands[_LAST_KEY] = b.Cast(b.dims(values=(total - 1,), shape=(1,)), to=I32)
    if at is not None and counted is not None:
        allowed, bias = b.Unsqueeze(counted, b.constant(np.array([1, 2], np.int64))), operands[_BIAS]
        if bias is not None:
            allowed = b.Where(allowed, bias, b.CastLike(b.constant(np.array(-np.inf, np.float32)), bias))
        operands[_AT], operands[_BIAS] = at, allowed
    Rewriter(m).replace_operands(op, operands)


def _as(b: GraphBuilder, x: Value, dtype: DType) -> Value:
    return x if x.tensor.dtype == dtype else b.Cast(x, to=dtype)


def _replace(m: Module, arg: Value, made: Value) -> None:
    arg.replace_uses(made)
    m.main.body.args.remove(arg)


def _last_tokens_only(m: Module, count: int) -> None:
    """Pass only the last rows to the head."""
    logits = m.main.body.terminator.operands[0]
    op = logits.defining_op if logits is not None else None
    while op is not None and op.name in _AFTER_HEAD and op.operands[0] is not None:
        op = op.operands[0].defining_op
    if op is None or op.name not in _HEADS or not _is_constant(op.operands[1]) or op.parent is None:
        return
    ends = [m.add_weight("last", np.array([k], np.int64)) for k in (-count, _END, 1)]
    rows = op.operands[0] if count == 1 else _all_rows(op.operands[0])
    last = op.parent.insert(Op(m.registry["Slice"], [rows, *ends], {}, (None,), loc=op.loc), op)
    Rewriter(m).replace_operand(op, 0, last.result)


def _is_constant(x: Value | None) -> bool:
    """Whether a value depends on weights only, such as a head that is the embedding, transposed or dequantised."""
    if x is None or isinstance(x, Weight):
        return x is not None
    maker = x.defining_op
    return maker is not None and not maker.regions and all(_is_constant(v) for v in maker.operands if v is not None)


def _all_rows(x: Value | None) -> Value | None:
    """The operand of a file's head, before the file itself selects its last row."""
    cut = None if x is None else x.defining_op
    if cut is None or cut.name != "Slice" or cut.operands[0] is None:
        return x
    bounds = [v.data.reshape(-1).tolist() if isinstance(v, Weight) else None for v in cut.operands[1:]]
    takes_last = bounds[:1] == [[-1]] and bounds[2:3] in ([[1]], [[-2]]) and bounds[3:] in ([], [[1]])
    ends = bounds[1] if len(bounds) > 1 else None
    return cut.operands[0] if takes_last and ends is not None and ends[0] >= np.iinfo(np.int32).max else x
