"""Compiles deferred ops during a run, once their operands are known, and caches the result."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from occ.compiler.diagnostics import CompileError
from occ.compiler.ir.deferred import foreign_types
from occ.compiler.ir.dtype import from_numpy
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.types import TensorType
from occ.runtime.errors import RunError
from occ.runtime.forks import renew_in_children

_KEPT = 256  # compiled ops
_LARGEST_VALUE = 1024  # maximum elements of an operand that may decide shapes
_VARIED = 16  # sets of values, after which an op's values are considered different every time, as in a loop
_INTERPRETED = 1 << 16  # maximum elements of the operands of an op that is then interpreted

Compiled = Callable[[Sequence[Any]], list[Any]]
Compile = Callable[[Module], Compiled]


class DeferredCompiler:
    """Runs deferred ops: compiled once for each set of shapes and of values that decide shapes.

    Native code for values that always differ, as in a loop, takes a thousand times as long as the op. An op that moves
    elements by them, such as an Unsqueeze, is left to `onnx`'s reference implementation, which is numpy. So is one
    that moves strings, for which no code is generated. Others are interpreted, unless they work on many elements.

    Args:
        compile: makes a module, whose inputs have constant extents, ready to run.
        registry: the available operators.
        interpret: the same without generating code.
    """

    def __init__(self, compile: Compile, registry: Registry, interpret: Compile | None = None) -> None:  # noqa: A002
        self._compile, self._registry, self._interpret = compile, registry, interpret or compile
        self._known: OrderedDict[Hashable, Compiled] = OrderedDict()
        self._decided: dict[str, tuple[bool, ...]] = {}  # for each text: which operands are constants
        self._met: Counter[str] = Counter()  # for each text: sets of values
        self._references: dict[str, Compiled | None] = {}
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Implements `Renewable.renew`."""
        self._lock = threading.Lock()

    def __call__(self, text: str, operands: Sequence[Any]) -> list[Any]:
        """Run the op given by `text`.

        Raises:
            RunError: OCC0504 the op does not match its operands.
            CompileError: it cannot be compiled at all.
        """
        from occ.compiler.frontend.text import parse  # few models have deferred ops

        if any(isinstance(x, np.ndarray) and x.dtype.kind in "OUST" for x in operands):
            moved = self._moved(text, operands)
            if moved is not None:
                return moved
        m: Module | None = None
        decided = self._decided.get(text)
        if decided is None:
            m = parse(text, self._registry)
            decided = self._decided[text] = _decided_by_value(m)
        constant = [d and _is_small(x) for d, x in zip(decided, operands, strict=True)]
        key = (text, *(_key(x, value=c) for x, c in zip(operands, constant, strict=True)))
        with self._lock:
            compiled = self._known.get(key)
        if compiled is None:
            self._met[text] += 1
            varied = self._met[text] > _VARIED
            if varied and (moved := self._moved(text, operands)) is not None:
                return moved
            make = self._interpret if varied and sum(map(np.size, operands)) <= _INTERPRETED else self._compile
            try:
                compiled = make(_concrete(m or parse(text, self._registry), operands, constant))
            except CompileError as e:
                raise _misfit(e) from e
            with self._lock:
                self._known[key] = compiled
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
        return compiled([x for x, c in zip(operands, constant, strict=True) if not c])

    def _moved(self, text: str, operands: Sequence[Any]) -> list[Any] | None:
        """The reference implementation's result of an op that only moves data.

        None if it does more than move data, or rejects the operands.
        """
        from occ.compiler.frontend.text import parse

        if text not in self._references:
            m = parse(text, self._registry)
            self._references[text] = _reference(m) if _only_moves(m) else None
        reference = self._references[text]
        try:
            return None if reference is None else reference(operands)
        except Exception:
            return None


def _only_moves(m: Module) -> bool:
    """Whether a module's op copies elements as ONNX's reference does, whatever their values are."""
    (op,) = m.main.body.body
    return op.spec.moves or op.name in ("Split", "Tile")


def _reference(m: Module) -> Compiled:
    from onnx.reference import ReferenceEvaluator

    from occ.compiler.frontend.export import export

    evaluator = ReferenceEvaluator(model := export(m))
    (node,) = evaluator.rt_nodes_
    places = {i.name: k for k, i in enumerate(model.graph.input)}
    reads = [places.get(name) for name in node.onnx_node.input]

    def run(operands: Sequence[Any]) -> list[Any]:
        made = node.run(*(None if k is None else np.asarray(operands[k]) for k in reads))
        return [
            x.astype(object) if x.dtype.kind in "OUST" else x for x in made
        ]  # a copy: it may be a view of an operand

    return run


def _misfit(e: CompileError) -> Exception:
    """The run error of a deferred model that does not match its operands."""
    first = e.diagnostics[0]
    if not first.code.startswith("OCC02"):
        return e
    return RunError("OCC0504", f"node `{first.where.partition(': ')[2]}`: {first.message}", "; ".join(first.helps))


def _decided_by_value(m: Module) -> tuple[bool, ...]:
    """Whether each operand's value may decide a shape."""
    (op,) = m.main.body.body
    whole = op.spec.composite is not None  # its parts may use any of them
    names = {v: whole or op.spec.operand_name(k) in op.spec.static for k, v in enumerate(op.operands) if v is not None}
    return tuple(names[a] for a in m.main.args)


def _is_small(x: Any) -> bool:
    if not isinstance(x, (np.ndarray, np.generic)) or x.size > _LARGEST_VALUE:
        return False
    kind = from_numpy(x.dtype).kind
    return kind in "iub" or (kind == "f" and x.size <= 16)


def _key(x: Any, *, value: bool) -> Hashable:
    if not isinstance(x, np.ndarray):
        x = np.asarray(x)
    return (x.dtype, x.shape, x.tobytes() if value else None)


def _concrete(m: Module, operands: Sequence[Any], constant: Sequence[bool]) -> Module:
    """The module with the shapes of the operands, and some of their values as constants."""
    kept: list[Value] = []
    for arg, x, is_constant in zip(m.main.args, operands, constant, strict=True):
        array = np.asarray(x)
        if is_constant:
            arg.replace_uses(m.add_weight(arg.name, array.copy()))  # what is compiled outlives the operand
        else:
            arg.type = TensorType(from_numpy(array.dtype), array.shape)
            kept.append(arg)
    m.main.body.args[:] = kept
    return m


def has_foreign_types(ops: Sequence[Op]) -> bool:
    """Whether ops use elements that native code does not support."""
    return any(foreign_types(op) for op in ops)
