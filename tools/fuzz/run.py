"""Runs a case in all the ways in which occ can run it, and compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.deferred import DeferredCompiler
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.interp.graph import Interpreter
from occ.compiler.ir.dim import Sym, evaluate, symbols
from occ.compiler.ir.layout import Layout, unpack
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.stages import ORDER
from occ.compiler.plan.plan import defer_text, deferred_text
from occ.runtime.errors import RunError
from tools.fuzz import judge
from tools.fuzz.generate import Case
from tools.fuzz.guard import all_guarded

FAULTS = ("OCC0403", "OCC0901", "OCC0902")  # codes that no valid model may see
SIZES = ("OCC0501", "OCC0503")  # codes of sizes that the build took to be equal
CERTAIN = frozenset(("STFT", "DFT", "Resize", "Constant"))  # operators that take each size of a valid model
OPTIONS: Mapping[str, Sequence[Mapping[str, str]]] = {
    "cpu": (
        {},
        {},
        {},
        {"strassen": "on"},
        {"winograd": "off"},
        {"schedule": "fallback"},
        {"qdq": "float"},
        {"batch-slices": "1"},
    ),
    "cpu-jit": ({}, {}, {"qdq": "float"}, {"batch-slices": "1"}),
    "interp": ({}, {}, {"qdq": "float"}),
}


@dataclass
class Outcome:
    """What one way of running a case came to.

    Attributes:
        way: the target, and how it was run; `cpu passes` is the module for `cpu` interpreted before code is generated.
        kind: `same`, `differs`, `failed`, `refused` (a diagnostic says that occ does not do this), or `oracle` (the result
            is another than onnxruntime's, and onnx.reference agrees with it).
        text: the difference or the error.
    """

    way: str
    kind: str
    text: str = ""


class Runner:
    """Runs one case.

    Attributes:
        case: the case.
        listeners: called after passes.
    """

    def __init__(
        self, case: Case, listeners: Sequence[Any] = (), options: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.case, self.listeners = case, listeners
        self.options = (
            options
            if options is not None
            else {t: {**o[case.seed % len(o)], **case.options} for t, o in OPTIONS.items()}
        )
        self.symbolic = any(d.dim_param for i in case.model.graph.input for d in i.type.tensor_type.shape.dim)
        self.want = {o.name: case.known[o.name] for o in case.model.graph.output}
        self._analysis: judge.Analysis | None = None

    def passes(self, target: str) -> Outcome:
        """The passes of a native target, and the interpreter after the last one that leaves a module which it can run."""
        way = f"{target} passes"
        try:
            compilation = self._compilation(target)
            m = compilation.advance(min(compilation.last_stage, "scheduled", key=ORDER.__getitem__))
        except Exception as e:
            return self._problem(way, e)
        feeds = [self.case.feeds[a.name] for a in m.main.args]
        if not _fit(m, feeds):
            return Outcome(way, "refused", "sizes that the build took to be equal are not")

        deferred = DeferredCompiler(judge.interpreted, m.registry)

        def run() -> dict[str, Any]:
            results = Interpreter(m, lambda op, operands: deferred(*_waiting(op, operands))).run(feeds, {})
            found = zip(m.main.result_names, m.main.results, results, strict=True)
            return {n: _unpacked(x, v.tensor.layout, self.want[n].shape) for n, v, x in found}

        return self._judged(way, run)

    def whole(self, target: str) -> Iterator[Outcome]:
        """A target to the end; native code is run on one and two threads."""
        try:
            artifact = self._compilation(target).artifact()
        except Exception as e:
            yield self._problem(target, e)
            return
        for threads in (1,) if target == "interp" else (1, 2):
            way = target if target == "interp" else f"{target} {threads}"
            yield self._judged(way, lambda n=threads: self._session(artifact, n, guard=target != "interp"))

    def _session(self, artifact: Any, threads: int, *, guard: bool) -> dict[str, Any]:
        """Outputs, computed where nobody may read past an input where that is native code."""
        session = open_session(artifact, threads)
        feeds = all_guarded(self.case.feeds, "end" if threads == 1 else "start") if guard else self.case.feeds
        try:
            return session.run(feeds)
        finally:
            session.close()

    def _compilation(self, target: str) -> Compilation:
        options = self.options.get(target, {})
        settings = Settings(
            target, options=options, cache=target == "cpu", verify=self.case.seed % 16 == 0, listeners=self.listeners
        )
        return Compilation(self.case.model, settings)

    def _judged(self, way: str, run: Any) -> Outcome:
        try:
            outputs = {n: np.asarray(x) for n, x in run().items()}
        except Exception as e:
            return self._problem(way, e)
        if all(judge.near(x, self.want[n]) for n, x in outputs.items()):
            return Outcome(way, "same")
        self._analysis = self._analysis or judge.analyse(self.case)
        text = judge.verdict(outputs, self._analysis, self.want)
        if not text:
            return Outcome(way, "same")
        other = judge.other_oracle(self.case, outputs, self._analysis, self.want)
        return Outcome(way, "oracle" if other else "differs", f"{other}: {text}" if other else text)

    def _problem(self, way: str, e: Exception) -> Outcome:
        if isinstance(e, CompileError):
            first = e.diagnostics[0]
            kind = "failed" if first.code in FAULTS else "refused"
            return Outcome(way, kind, f"{first.code} {first.message} {'; '.join(first.notes[:2])}")
        if isinstance(e, RunError) and e.code in SIZES and self.symbolic and not self.case.operators.keys() <= CERTAIN:
            return Outcome(way, "refused", str(e))
        return Outcome(way, "failed", f"{type(e).__name__}: {e}")


def _unpacked(x: np.ndarray, layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    return x if layout.is_row_major else unpack(x, layout, shape)


def _waiting(op: Op, operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """An op that waits for its operands, set apart or not, as `DeferredCompiler` takes it."""
    return (deferred_text(op), operands) if op.name == "deferred" else defer_text(op, operands)


def _fit(m: Module, feeds: Sequence[np.ndarray]) -> bool:
    """Whether inputs have the sizes that a module has come to expect, as a session checks them."""
    axes = [
        (d, n) for a, x in zip(m.main.args, feeds, strict=True) for d, n in zip(a.tensor.dims, x.shape, strict=True)
    ]
    sizes = {str(d): n for d, n in axes if isinstance(d, Sym) and d.is_symbol}
    return all(evaluate(d, sizes) == n for d, n in axes if set(symbols(d)) <= set(sizes))


def outcomes(runner: Runner, ways: Sequence[str]) -> Iterator[Outcome]:
    """The outcomes of the requested ways: a target, or only its passes, as in `cpu passes`."""
    for way in ways:
        target, _, passes = way.partition(" ")
        if passes:
            yield runner.passes(target)
        else:
            yield from runner.whole(target)
