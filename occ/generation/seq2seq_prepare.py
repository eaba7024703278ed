"""The parts of an encoder-decoder, as optimum exports it, for one sequence.

They are the encoder, the encoder's keys and values for the decoder, and a decoding step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from occ.compiler.driver.source import load_module
from occ.compiler.ir.module import Module
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.infer.infer_control import inline_branch
from occ.generation.names import IDS, LOGITS, is_cache
from occ.runtime.errors import RunError

STATES = "encoder_hidden_states"
_MASK, _WITH_PAST = "encoder_attention_mask", "use_cache_branch"
_CROSS = ".encoder."  # in the names of the encoder's keys and values


def is_cross(name: str) -> bool:
    """Whether an input or a result holds the encoder's keys or values."""
    return _CROSS in name


def prepared_encoder(path: Path) -> Module:
    """The encoder for one sequence, without masking.

    Raises:
        CompileError: the file cannot be read.
    """
    m = load_module(path)
    _one_sequence(m)
    _ones_for_masks(m, "attention_mask")
    return m


def prepared_cross(path: Path) -> Module:
    """The values that a step derives from `encoder_hidden_states`, by its input names.

    Args:
        path: of a decoder without a past, or of a merged one.

    Raises:
        CompileError: the file cannot be read.
        RunError: OCC0501 it returns no keys and values of the encoder.
    """
    m = load_module(path)
    _one_sequence(m)
    _take_branch(m, path, "else_branch")
    wanted = [n for n in m.main.result_names if is_cross(n)]
    if not wanted or STATES not in {a.name for a in m.main.args}:
        raise _refused(path, "it does not return the encoder's keys and values")
    _keep_results(m, wanted)
    m.main.result_names = [n.replace("present", "past_key_values", 1) for n in wanted]
    for a in [a for a in m.main.args if a.name == IDS]:  # only whose shape is read
        a.replace_uses(m.add_weight(IDS, np.zeros((1, 1), a.tensor.dtype.numpy)))
    _ones_for_masks(m, _MASK)
    _drop_unused(m, lambda name: name != STATES)
    return m


def prepared_step(path: Path) -> Module:
    """A decoding step: a token, caches, and the encoder's keys and values in; logits and caches out.

    Args:
        path: of a decoder with a past, or of a merged one.

    Raises:
        CompileError: the file cannot be read.
        RunError: OCC0501 it has no past.
    """
    m = load_module(path)
    _one_sequence(m)
    _take_branch(m, path, "then_branch")
    pasts = [a.name for a in m.main.args if is_cache(a.name) and not is_cross(a.name)]
    presents = [n.replace("past_key_values", "present", 1) for n in pasts]
    if not pasts or not {LOGITS, *presents} <= {*m.main.result_names}:
        raise _refused(path, "its decoder has no past")
    _keep_results(m, [LOGITS, *presents])
    _ones_for_masks(m, _MASK)
    _drop_unused(m, lambda name: name != IDS and not is_cache(name))
    return m


def _refused(path: Path, why: str) -> RunError:
    return RunError("OCC0501", f"`{path}`: {why}", "export the model with optimum, for a task `...-with-past`")


def _one_sequence(m: Module) -> None:
    """Set the batch to 1, and one token at a time."""
    for a in m.main.args:
        if isinstance(a.type, TensorType) and a.type.rank > 1:
            dims = (1, 1) if a.name == IDS and any(is_cache(b.name) or b.name == STATES for b in m.main.args) else (1,)
            a.type = TensorType(a.type.dtype, (*dims, *a.type.dims[len(dims) :]))


def _take_branch(m: Module, path: Path, name: str) -> None:
    arg = next((a for a in m.main.args if a.name == _WITH_PAST), None)
    if arg is None:
        return
    branches = [op for op in arg.users if op.name == "If" and op.parent is m.main.body]
    if not branches:
        raise _refused(path, f"`{_WITH_PAST}` has no matching outputs")
    arg.replace_uses(m.add_weight(arg.name, np.array([name == "then_branch"])))
    m.main.body.args.remove(arg)
    for op in branches:
        inline_branch(m, op, name)


def _keep_results(m: Module, wanted: list[str]) -> None:
    end, names = m.main.body.terminator, m.main.result_names
    Rewriter(m).replace_operands(end, [end.operands[names.index(n)] for n in wanted])
    m.main.result_names = wanted


def _ones_for_masks(m: Module, name: str) -> None:
    """Make a mask, if there is one, all ones."""
    for arg in [a for a in m.main.args if a.name == name]:
        first = m.main.body.first
        assert first is not None
        b = Rewriter(m).builder(first)
        sizes = b.dims(values=arg.tensor.dims, shape=(arg.tensor.rank,))
        arg.replace_uses(b.ConstantOfShape(sizes, value=np.ones(1, arg.tensor.dtype.numpy)))
        m.main.body.args.remove(arg)


def _drop_unused(m: Module, may_go: Callable[[str], bool]) -> None:
    """Remove what no result needs, and then inputs without readers."""
    erase_dead(m)
    for a in [a for a in m.main.args if not a.uses and may_go(a.name)]:
        m.main.body.args.remove(a)
