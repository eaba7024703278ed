"""Translation validation: interprets the model before and after every pass, and compares."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from occ.compiler.compare import first_difference
from occ.compiler.debugging.random_tensors import random_array
from occ.compiler.diagnostics import error
from occ.compiler.interp.graph import Env, Interpreter
from occ.compiler.ir.dim import evaluate, symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.printer import op_text
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Pass
from occ.compiler.passes.manager import Ran
from occ.runtime.errors import RunError

TOLERANCE = 1e-3  # relative to the largest value: passes may round differently, and errors accumulate
_SIZES = (2, 3, 1, 4, 8, 16, 32, 48, 64, 96, 128, 224, 256, 512)  # values tried for symbolic dims, in this order


class Recorder(Interpreter):
    """An interpreter that records the results of every op outside of fused regions, by name and order."""

    def __init__(self, m: Module) -> None:
        super().__init__(m)
        self.values: dict[str, tuple[Op, Any]] = {}

    def op(self, op: Op, env: Env, dims: Mapping[str, int]) -> list[Any]:
        """The results of one op."""
        found = super().op(op, env, dims)
        if op.parent is self.m.main.body:
            self.values |= {r.name: (op, x) for r, x in zip(op.results, found, strict=True)}
        return found


def results(m: Module, inputs: Sequence[Any], *, recorder: Interpreter | None = None) -> list[Any]:
    """The outputs of a module for inputs.

    Raises:
        RunError: a node cannot work on them. NotInterpretable: the interpreter has no meaning for an op.
    """
    sizes = {name: info.symbol.lo for name, info in m.symbols.items()}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return (recorder or Interpreter(m)).run(list(inputs), sizes)
    except (AssertionError, KeyError, NotImplementedError) as e:
        raise NotInterpretable(f"{type(e).__name__}: {e}") from e


class NotInterpretable(Exception):
    """The interpreter cannot run a module."""


def inputs_of(m: Module, given: Mapping[str, int], seed: int = 0) -> list[Any] | None:
    """Small seeded inputs for which the module runs; None if none were found.

    Args:
        m: the module, every value with a type.
        given: values of symbolic dims, by the model's names.
        seed: of the values.
    """
    fixed = {info.symbol.name: given[info.label] for info in m.symbols.values() if info.label in given}
    tried = product(_SIZES, (1, 0)) if m.symbols else [(_SIZES[0], 0)]  # different sizes reveal more, if allowed
    for size, apart in tried:
        inputs = _inputs(m, size, apart, fixed, seed)
        if inputs is None:
            continue
        try:
            results(m, inputs)
        except (RunError, ValueError, IndexError, MemoryError):
            continue
        return inputs
    return None


def _inputs(m: Module, size: int, apart: int, fixed: Mapping[str, int], seed: int) -> list[Any] | None:
    rng = np.random.default_rng(seed)
    made: list[Any] = []
    wanted = {s.symbol.name: size + k * apart for k, s in enumerate(m.symbols.values())}
    for arg in m.main.args:
        if not isinstance(arg.type, TensorType) or arg.type.shape is None:
            return None
        names = {
            n: fixed.get(n, max(wanted.get(n, size), s.lo) // s.divisible_by * s.divisible_by)
            for n, s in symbols(*arg.type.shape).items()
        }
        shape = [evaluate(d, names) for d in arg.type.shape]
        made.append(random_array(rng, arg.type.dtype.numpy, shape))
    return made


def difference(a: Any, b: Any, tolerance: float = TOLERANCE) -> str:
    """How two values differ by more than rounding; empty if they do not."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return "" if type(a) is type(b) else "another kind of value"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
    at = first_difference(b, a, tolerance, 1e-6)
    return "" if at is None else f"element {list(at)} was {a[at]!s} and is {b[at]!s}"


class Validate:
    """Observes pass managers, of one module after the other.

    Attributes:
        dims: values of symbolic dims, by the model's names.
        module: the one that is validated; an Ascend build has more than one.
        inputs: None while the module has no types yet.
        checked: passes after which the results were compared.
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.dims = dims
        self.module: Module | None = None
        self.inputs: list[Any] | None = None
        self.before: Recorder | None = None
        self.outputs: list[Any] = []
        self.checked = 0
        self.skipped = ""

    def __call__(self, p: Pass, m: Module, ran: Ran | None) -> None:
        """Compare after each pass.

        Raises:
            CompileError: OCC0614 the pass changed a value, or the model no longer runs.
        """
        if m is not self.module:
            self.module, self.inputs, self.before = m, None, None
        if self.skipped:
            return
        if self.inputs is None:
            self._start(m)
            return
        if ran is None or ran.stage == "lowered":
            return
        if not ran.changed and not p.stage:
            return
        after = Recorder(m)
        try:
            outputs = results(m, self.inputs, recorder=after)
        except NotInterpretable as e:
            self.skipped = f"after `{p}` the model cannot be interpreted: {e}"
            return
        except (RunError, ValueError, IndexError) as e:
            raise error(
                "OCC0614",
                f"after the pass `{p}` the model no longer runs",
                notes=[str(e)],
                help="`occ bisect` has more",
            ) from e
        self.checked += 1
        for name, old, new in zip(m.main.result_names, self.outputs, outputs, strict=True):
            text = difference(old, new)
            if text:
                raise _changed(p, ran, name, text, first_change(self.before, after))
        self.before, self.outputs = after, outputs

    def _start(self, m: Module) -> None:
        if any(r.type is None for op in m.walk() for r in op.results):
            return
        if not all(op.spec.pure for op in m.walk()):
            self.skipped = "the model uses random numbers"
            return
        try:
            self.inputs = inputs_of(m, self.dims)
            if self.inputs is None:
                self.skipped = "no small inputs were found on which it runs; fix some dims with --dim"
                return
            self.before = Recorder(m)
            self.outputs = results(m, self.inputs, recorder=self.before)
        except NotInterpretable as e:
            self.skipped = f"the model cannot be interpreted: {e}"

    @property
    def summary(self) -> str:
        """One line for people."""
        return (
            f"not validated: {self.skipped}"
            if self.skipped
            else f"validated after {self.checked} passes that changed the model"
        )


def first_change(before: Recorder | None, after: Recorder) -> tuple[Op, str] | None:
    """The first op, in the order of `after`, whose value differs from the value of that name before."""
    if before is None:
        return None
    for name, (op, value) in after.values.items():
        if name in before.values:
            text = difference(before.values[name][1], value)
            if text:
                return op, f"%{name}: {text}"
    return None


def _changed(p: Pass, ran: Ran, output: str, text: str, where: tuple[Op, str] | None) -> Exception:
    notes = [f"output `{output}`: {text}"]
    if where is not None:
        op, first = where
        notes += [f"the first value that differs: {first}", f"defined by {op_text(op)}", f"from the nodes {op.loc}"]
    if ran.hits:
        notes.append("it applied " + ", ".join(f"`{n}` {k} times" for n, k in ran.hits.items()))
    return error(
        "OCC0614", f"the pass `{p}` changed what the model computes", notes=notes, help="`occ bisect` has more"
    )
