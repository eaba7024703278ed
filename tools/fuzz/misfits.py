"""The fuzzer of misfits: valid models of single operators, one thing of which is changed (`changes.py`), at the build or at the run.

Each misfit must be refused, or computed the same by all targets: none may read outside of a tensor, end in an internal error, or
compute what onnxruntime and onnx.reference both refuse. Native code runs on arrays beside memory that nobody may touch (`guard.py`).
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.random import default_rng
from onnx import ModelProto, numpy_helper

import occ
from occ.compiler.diagnostics import CompileError
from occ.runtime.errors import RunError
from tools.fuzz.campaign import Say
from tools.fuzz.changes import Arrays, Attribute, Change, Extent, Number, Results, attributes, extents, numbers
from tools.fuzz.guard import run_guarded
from tools.fuzz.native_sessions import NativeSessions
from tools.fuzz.oracle import run_onnxruntime, run_reference
from tools.fuzz.valid_models import Valid, of_tests, valid_models

INTERNAL = ("OCC0403", "OCC0901", "OCC0902")
Oracle = Callable[[ModelProto, Arrays], Mapping[str, Any]]
ORACLES: dict[str, Oracle] = {"onnxruntime": run_onnxruntime, "onnx.reference": run_reference}


def with_constants(valid: Valid) -> Valid:
    """The model with all operands but the first as constants."""
    first = next(iter(valid.feeds))
    model = ModelProto()
    model.CopyFrom(valid.model)
    kept = [i for i in model.graph.input if i.name == first]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in valid.feeds.items() if n != first)
    return Valid(valid.name, model, {first: valid.feeds[first]})


WAYS = ("run", "build", "constants", "attributes")


def changes(valid: Valid, way: str) -> Iterator[Change]:
    """All changes of a model that are for a way."""
    if way == "attributes":
        yield from attributes(valid)
        return
    first = next(iter(valid.feeds))
    constant = way == "constants"
    yield from extents({first: valid.feeds[first]} if constant else valid.feeds)
    yield from numbers({n: x for n, x in valid.feeds.items() if n != first} if constant else valid.feeds)


@dataclass(frozen=True)
class Cases:
    """What a seed stands for.

    Attributes:
        valid: a model, with extents of symbols at the run.
        way: operands change at the run, at the build, or at the build where all but the first are constants; or attributes do; of `WAYS`.
        native: whether `cpu` is among the targets.
        changes: of the model; None for none.
    """

    valid: Valid
    way: str
    native: bool
    changes: list[Change | None]

    @cached_property
    def operator(self) -> str:
        return operator_of(self.valid.model)

    def made(self, change: Change | None) -> Valid:
        """The misfit of a change."""
        made = self.valid if change is None else change.of(self.valid)
        return with_constants(made) if self.way == "constants" else made

    def models(self) -> list[ModelProto]:
        """What is built for native code."""
        return [self.valid.model] if self.way == "run" else [self.made(c).model for c in self.changes]


@dataclass
class Misfits:
    """Does misfits; a seed stands for a model and a way, see `Cases`.

    Attributes:
        folder: where failing cases are written.
        targets: the first is what the others are compared with.
        cpu: `cpu` is among the targets for one model in this many, at run time, with one compilation; 0 for none.
        most: misfits of a seed.
        options: of `cpu`, such as a sanitizer.
        builds: `cpu` is among the targets at the build too, where each misfit is compiled.
        ways: that seeds take in turns, of `WAYS`.
    """

    folder: Path
    targets: tuple[str, ...] = ("interp", "cpu-jit")
    cpu: int = 0
    most: int = 10**6
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    builds: bool = False
    ways: tuple[str, ...] = WAYS

    def __call__(self, first: int, last: int, say: Say) -> None:
        say({"seed": first})
        every = {seed: made for seed in range(first, last) if (made := self.cases(seed)) is not None}
        models = {(seed, k): m for seed, c in every.items() if c.native for k, m in enumerate(c.models())}
        native = NativeSessions(models, self.options) if models else None
        for seed, cases in every.items():
            counts, faults = Counter[str](), list[tuple[str, str, str]]()
            for name, outcome, text in self._outcomes(seed, cases, say, native):
                counts[f"{cases.way}{' with cpu' if cases.native else ''}: {outcome}"] += 1
                if outcome in WRONG:
                    faults.append((f"{outcome}: {cases.operator}: {_kind(text)}", f"{seed} {name}", text[:900]))
            say({"seed": seed, "cases": {"misfits": counts.total()}, "outcomes": counts, "faults": faults})

    def cases(self, seed: int) -> Cases | None:
        """What a seed stands for; None where the model does not build with extents of symbols."""
        models = valid_models()
        turn, way = seed // len(self.ways), self.ways[seed % len(self.ways)]
        native = bool(self.cpu) and (way == "run" or self.builds) and turn % self.cpu == turn // len(models) % self.cpu
        valid = models[turn % len(models)]
        if way == "run":
            extents = of_tests("extents")
            symbolic = (extents.of_any_extent(valid.model, kept) for kept in (extents.NONE, *extents.SOME))
            model = next(filter(_builds, symbolic), None)
            if model is None:
                return None
            valid = Valid(valid.name, model, valid.feeds)
        every = list(changes(valid, way))
        chosen = sorted(default_rng([seed, 34]).permutation(len(every))[: self.most].tolist())
        return Cases(valid, way, native, [None, *(every[k] for k in chosen)])

    def _write(self, stem: str, text: str, valid: Valid) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        onnx.save(valid.model, self.folder / f"{stem}.onnx")
        with (self.folder / f"{stem}.txt").open("a", encoding="utf-8") as f:
            f.write(text)

    def _outcomes(
        self, seed: int, cases: Cases, say: Say, native: NativeSessions | None = None
    ) -> Iterator[tuple[str, str, str]]:
        """Names, outcomes and texts of the misfits of a model."""

        def judged(valid: Valid, k: int, fits: _Judge | None = None) -> _Judge:
            makers = {t: partial(occ.compile, valid.model, target=t, threads=1) for t in self.targets}
            if native is not None and cases.native:
                makers["cpu"] = partial(native.session, (seed, k))
            return _Judge(valid, makers, fits)

        known = judged(cases.made(None), 0)
        for k, change in enumerate(cases.changes):
            made = cases.made(change)
            say({"seed": seed, "doing": f": {cases.operator}", "case": f"{seed} {made.name}"})
            judge = known if cases.way == "run" or change is None else judged(made, k, known)
            outcome, text = judge.outcome(made.feeds)
            if outcome in ("lax", "wrong") and _known_to_differ(cases.operator, change, outcome, cases.valid):
                outcome = "same"
            if outcome in WRONG:
                self._write(f"{seed}", f"{outcome}: {made.name}\n{text}\n", made)
            yield made.name, outcome, text


WRONG = ("internal", "unlike", "differs", "lax", "wrong")


class _Judge:
    """A model on all targets and by the oracles; each is built once.

    Args:
        valid: the model, whose inputs need not be those that it is run with.
        makers: of sessions, by target; the first is what the others are compared with.
        fits: what knows the model without the change.
    """

    def __init__(self, valid: Valid, makers: Mapping[str, Callable[[], Any]], fits: _Judge | None = None) -> None:
        self.model, self.feeds = valid.model, valid.feeds
        self._makers, self._fits = makers, fits or self
        self._sessions: dict[str, Any] = {}

    @cached_property
    def oracles(self) -> tuple[str, ...]:
        """The runtimes that take the model without the change."""
        asked = [n for n in ORACLES if n != "onnxruntime" or operator_of(self.model) not in ABORTS]
        return tuple(n for n in asked if _attempt(ORACLES[n], self.model, self.feeds) is not None)

    def outcome(self, feeds: Arrays) -> tuple[str, str]:
        """The outcome for inputs: `refused`, `same`, or one of `WRONG`; and the fault."""
        found: dict[str, Any] = {}
        for target in self._makers:
            try:
                found[target] = self._run(target, feeds)
            except (CompileError, RunError) as e:
                codes = [d.code for d in e.diagnostics] if isinstance(e, CompileError) else [e.code]
                if any(c in INTERNAL for c in codes):
                    return "internal", f"{target}: {e}"
                found[target] = e
            except Exception as e:
                return "internal", f"{target}: {type(e).__name__}: {e}\n{''.join(traceback.format_exception(e))[-600:]}"
        refused = {t: e for t, e in found.items() if isinstance(e, Exception)}
        if len(refused) == len(found):
            return "refused", ""
        if refused:
            return "unlike", "; ".join(f"{t} {found[t] if t in refused else 'computes'}" for t in found)
        if operator_of(self.model) in RANDOM:
            return "same", ""
        first, *others = found.values()
        if text := next((t for o in others if (t := difference(first, o))), ""):
            return "differs", text
        return self._against_oracles(first, feeds)

    def _against_oracles(self, found: Mapping[str, Any], feeds: Arrays) -> tuple[str, str]:
        if not self._fits.oracles:
            return "same", ""
        known = [r for n in self._fits.oracles if (r := _attempt(ORACLES[n], self.model, feeds)) is not None]
        texts = [difference(found, r) for r in known]
        if texts and not all(texts):
            return "same", ""
        return ("wrong", "; ".join(texts)) if known else ("lax", f"no oracle takes it; {_shapes(found)}")

    def _run(self, target: str, feeds: Arrays) -> Mapping[str, Any]:
        if target not in self._sessions:
            try:
                self._sessions[target] = self._makers[target]()
            except Exception as e:
                self._sessions[target] = e
        session = self._sessions[target]
        if isinstance(session, Exception):
            raise session
        return session.run(dict(feeds)) if target == "interp" else run_guarded(session.run, feeds)


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How results differ by more than rounding does; empty if they do not."""
    for name, y in wanted.items():
        x = found.get(name)
        if not isinstance(y, (np.ndarray, np.generic)) or not isinstance(x, (np.ndarray, np.generic)):
            continue
        if x.shape != y.shape:
            return f"{name} has {[*x.shape]} and {[*y.shape]}"
        if y.dtype.kind in "OUST" or x.dtype.kind in "OUST":
            if x.astype(str).tolist() != y.astype(str).tolist() or any(not isinstance(v, (str, bytes)) for v in x.flat):
                return f"{name} has other texts"
            continue
        a, b = (v.astype(np.complex128 if v.dtype.kind == "c" else np.float64) for v in (x, y))
        unit = 1e-2 if x.dtype.name == "bfloat16" else 2e-3
        near = (
            np.abs(b[np.isfinite(b)]).max(initial=0.0) * unit
            + 1e-4
            + 1.01 * (x.dtype.kind in "iu" and x.dtype.itemsize == 1)
        )
        same = np.isclose(a, b, unit, near, equal_nan=True)
        if not same.all():
            return f"{name} differs at {int((~same).sum())} of {same.size} places, {a[~same].flat[0]} and {b[~same].flat[0]}"
    return ""


def operator_of(model: ModelProto) -> str:
    """The operators of a model."""
    return "-".join(dict.fromkeys(f"{n.domain}.{n.op_type}".lstrip(".") for n in model.graph.node))


def _attempt(run: Oracle, model: ModelProto, feeds: Arrays) -> Mapping[str, Any] | None:
    try:
        return run(model, feeds)
    except Exception:
        return None


def _builds(model: ModelProto) -> bool:
    try:
        occ.compile(model, target="interp")
    except CompileError as e:
        return any(d.code in INTERNAL for d in e.diagnostics)
    except Exception:
        return True
    return True


def _kind(text: str) -> str:
    return re.sub(r"[-\d.]+(e[-+]?\d+)?", "#", text.split("\n")[0])[:120]


def _shapes(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} {[*np.shape(x)]}" for n, x in found.items())


RANDOM = ("Bernoulli", "Multinomial", "Dropout")
ABORTS = ("GRU", "LSTM", "RNN", "Split")  # for which onnxruntime ends the process
# Changes of which occ takes more than the oracles, or has another idea, by pattern of their texts, and why.
LAX: dict[str, tuple[str, str]] = {
    "OneHot": ("depth: an axis", "a depth of one element in a vector"),
    "QLinearMatMul": ("", "a scale and a zero point of each row, which onnxruntime does not take"),
    **dict.fromkeys(
        ("GRU", "LSTM", "RNN"), ("", "sequences without a step; lengths and clips, which onnx.reference leaves out")
    ),
    "Attention": ("", "a mask that is shorter than the keys is padded"),
    "LRN": ("", "any rank from 2 on"),
    "ai.onnx.preview.FlexAttention": ("", "keys and values of unlike heads"),
    "ai.onnx.ml.TreeEnsemble": ("", "a row without a batch"),
    "AffineGrid": ("size", "a size of nothing"),
    "BatchNormalization": (".1 result", "results of training, in operator sets that compute without it"),
    "Cast-Constant-Equal": ("saturate", "an attribute that texts have no use for"),
    "LinearAttention": ("q_num_heads", "fewer heads of queries than of keys, as com.microsoft has them"),
    "MelWeightMatrix": (".*= (-1|0)$", "an edge or a rate that is not above 0, by which it is divided"),
    "PRelu": ("", "slopes of channels in operator set 6, which onnx.reference looks for by their extent"),
    "com.microsoft.RotaryEmbedding": (
        r"(sin|cos): axis 0|p: axis 0 [-+]1|p: an axis less",
        "sines of more positions than there are cosines, positions that all rows share, first positions of each row",
    ),
    "com.microsoft.MRotaryEmbedding": (
        "(sin|cos): axis 0|p: axis 1 -1|num_heads = 0",
        "sines of more positions than there are cosines, which tell the heads, and positions that all rows share",
    ),
    **{
        f"com.microsoft.{op}": (r"(?!mask).*= -1", "an index from the end")
        for op in ("EmbedLayerNormalization", "QEmbedLayerNormalization")
    },
    "com.microsoft.NGramHashMapping": (".*= -1", "an offset from the end"),
    "com.microsoft.SkipSimplifiedLayerNormalization": (".1 result", "the mean, to which onnxruntime writes nothing"),
    "com.microsoft.Pad": ("", "reflections of more elements than there are, as numpy and onnx.reference have them"),
    "com.microsoft.ConvTransposeWithDynamicPads": (
        r"Pads\b|p\[",
        "pads below 0, which add zeros",
    ),
    "com.microsoft.GroupQueryAttention": ("", "angles of more positions than are needed"),
    "Compress": (
        "input|condition|axis",
        "a condition longer than the axis, as onnxruntime takes it and onnx.reference does not",
    ),
}


def _is_float(change: Number, valid: Valid) -> bool:
    return valid.feeds[change.operand].dtype.kind == "f"


def _known_to_differ(operator: str, change: Change | None, outcome: str, valid: Valid) -> bool:
    """Whether occ is known to take a change that no oracle takes, or to compute something else."""
    if change is None:
        return operator in ABORTS  # whose lengths onnx.reference leaves out
    if outcome == "lax":
        rank = isinstance(change, Extent) and change.axis < 0  # operands with other ranks where they broadcast
        fewer = isinstance(change, Results) and change.by < 0  # results that onnxruntime wants named
        empty = isinstance(change, Attribute) and change.value in ("", [])  # as if it were not stated
        if empty or ((rank or fewer) and "com.microsoft" in operator):
            return True
    quantizes = re.search(r"(^|\.)Q(?!uick)", operator) is not None
    if quantizes and isinstance(change, Number) and change.value <= 0 and _is_float(change, valid):
        return True  # a scale that is not above 0, after whose division a rounding to integers is nothing certain
    return operator in LAX and re.match(LAX[operator][0], str(change)) is not None
