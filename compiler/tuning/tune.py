"""The tuner: measures schedule choices kernel by kernel, and keeps the fastest.

The rules schedule every kernel from facts about the machine. The tuner makes the same rules use other choices (`Hint`),
compiles the results, and compares outputs and times. It only runs on request (`occ build --tune`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import cached_property
from itertools import product
from statistics import median
from typing import TYPE_CHECKING

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest
from occ.compiler.codegen_halide.build import link, setup_for
from occ.compiler.codegen_halide.compile_kernels import compile_batch
from occ.compiler.codegen_halide.kernels import Setup
from occ.compiler.codegen_halide.options import CpuOptions
from occ.compiler.diagnostics import error, shorten
from occ.compiler.ir.module import Module
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.passes.lower.schedule import scheduled
from occ.compiler.targets.machine import Machine
from occ.compiler.targets.registry import target_for
from occ.compiler.tuning.isolated_call import isolated
from occ.compiler.tuning.measure import Bench, Operands, alone, machine_identity
from occ.runtime.dataclass import dataclass
from occ.runtime.threads import thread_count

if TYPE_CHECKING:
    from occ.compiler.driver.settings import Settings

# Candidates for each choice, in order; candidates that do not change the schedule are not compiled.
TRIED: Mapping[str, Sequence[str]] = {
    "outer": ("rows", "columns"),
    "tile": ("1", "2", "3", "4", "5", "6", "7", "8", "10", "12", "14"),
    "unroll": ("1", "2", "4", "8", "16"),
    "block": ("1", "2", "4", "8", "16", "32"),
    "vectors": ("1", "2", "3", "4"),
    "vectorize": ("8", "16", "32", "64"),
    "parallel": ("off", "on"),
}
_TOGETHER = 24  # candidates compiled at once: the time limit is checked in between
_COMBINED = 3  # choices whose combinations are tried
_GAIN = 0.02  # smaller gains may be noise
_SHARE = 0.98  # fraction of the total kernel time that is examined


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a kernel.

    Attributes:
        kernel, nodes: its name, and ONNX nodes that it computes.
        uses: calls in the model.
        hint: the winning choices; empty if the rules' own won.
        before, after: seconds per call.
        remembered: whether it is the result of an earlier build.
    """

    kernel: str
    nodes: tuple[str, ...]
    uses: int
    hint: str
    before: float
    after: float
    remembered: bool = False

    @property
    def saved(self) -> float:
        """Seconds of a run."""
        return self.uses * (self.before - self.after)


@dataclass(frozen=True)
class TuningResult:
    """The result of a search.

    Attributes:
        key: of the kernel on the machine measured.
        kernel: its name.
        hint, before, after: as in `Tuned`.
        whole: whether the search was completed.
    """

    key: str
    kernel: str
    hint: str
    before: float
    after: float
    whole: bool

    def keep(self, cache: Cache) -> None:
        """Store it; a search that was cut short without a result is not final."""
        if self.hint or self.whole:
            known = {"kernel": self.kernel, "hint": self.hint, "before": self.before, "after": self.after}
            cache.put("tuned", self.key, json.dumps(known).encode(), ".json")


@dataclass
class Tuner:
    """Finds choices for the kernels of a module, slowest first.

    Attributes:
        target: Halide target.
        machine: the machine that the rules schedule for.
        seconds: after which no more candidates are compiled; 0 only uses stored results.
        cache: where choices are stored, by kernel, machine and number of threads.
        threads: of a run.
        jobs: compilers at once.
        progress: called with the state.
        done: kernels examined.
        left: number of kernels not examined.
    """

    target: str
    machine: Machine
    seconds: float
    cache: Cache
    threads: int
    jobs: int = 2
    progress: Callable[[str], None] = lambda _: None
    done: list[Tuned] = field(default_factory=list)
    left: int = 0

    @classmethod
    def of(cls, settings: Settings, seconds: float) -> Tuner:
        """The tuner for compilations with these settings, for the default number of threads.

        Raises:
            CompileError: OCC0603 its target has no schedules to choose.
        """
        target, options = target_for(settings.target, settings.options)
        if not isinstance(options, CpuOptions) or options.schedule != "rules":
            what = "`-C schedule=fallback`" if isinstance(options, CpuOptions) else f"target `{target.name}`"
            help_ = "leave out --tune, or build with `-t cpu -O2`"
            raise error("OCC0603", f"{what} has no schedules to tune", help=help_)
        cache = Cache(enabled=settings.cache)
        threads = thread_count(None)
        return cls(options.halide_target, options.machine, seconds, cache, threads, settings.jobs, settings.progress)

    @cached_property
    def setup(self) -> Setup:
        """The compilation setup of kernels.

        Raises:
            CompileError: OCC0603 the kernels do not run on this machine; OCC0401, OCC0402 a part of the toolchain is
                missing.
        """
        setup, is_here = setup_for(self.target, self.cache)
        if not is_here:
            message = f"code for `{setup.target}` cannot be measured on this machine"
            raise error("OCC0603", message, help="leave out --tune")
        return setup

    def __call__(self, m: Module) -> dict[str, str]:
        """The choices, by te function.

        Raises:
            CompileError: OCC0603 the kernels do not run on this machine; OCC0401 to OCC0403 as a build.
        """
        end = time.perf_counter() + self.seconds
        uses, nodes = _uses(m)
        functions = [f for name, f in m.te.items() if uses.get(name) and not f.halide and not f.hint and f.stages]
        fresh = [f for f in functions if not self._recall(f, uses[f.name], nodes[f.name], remembered=True)]
        if self.seconds > 0 and fresh:
            self._tune(fresh, uses, nodes, end)
        else:
            self.left = len(fresh)
        return {t.kernel: t.hint for t in self.done if t.hint}

    def _recall(self, f: TeFunc, uses: int, nodes: tuple[str, ...], *, remembered: bool) -> bool:
        path = self.cache.path("tuned", self._key(f), ".json")
        try:
            known = json.loads(path.read_text())
            self.done.append(Tuned(f.name, nodes, uses, known["hint"], known["before"], known["after"], remembered))
        except (OSError, ValueError, KeyError):
            return False
        return True

    def _key(self, f: TeFunc) -> str:
        """Names identify contents, so the name of a kernel suffices.

        The best choice was best among the schedules of these rules.
        """
        rules = source_digest("occ.compiler.passes", "occ.compiler.codegen_halide")
        return digest(["tuned", f.name, self.setup.identity, rules, machine_identity(), str(self.threads)])

    def _tune(
        self, functions: Sequence[TeFunc], uses: Mapping[str, int], nodes: Mapping[str, tuple[str, ...]], end: float
    ) -> None:
        took = self.ranked(functions, uses)
        by_name = {f.name: f for f in functions}
        longest = worth_looking_at(took)
        self.left = len(took) - len(longest)
        for k, name in enumerate(longest):
            if time.perf_counter() >= end:
                self.left = len(took) - k
                return
            self.progress(f"tuning kernel {k + 1} of {len(took)}: {name}")
            found = self.search(by_name[name], end)
            self.done.append(Tuned(name, nodes[name], uses[name], found.hint, found.before, found.after))
            found.keep(self.cache)

    def search(self, f: TeFunc, end: float) -> TuningResult:
        """The choices for one kernel, searched until a time of `time.perf_counter`."""
        hint, before, after = _Search(self, f, end).best()
        return TuningResult(self._key(f), f.name, hint, before, after, time.perf_counter() < end)

    def ranked(self, functions: Sequence[TeFunc], uses: Mapping[str, int]) -> dict[str, float]:
        """Seconds that a run spends in each kernel with the rules' schedules, largest first."""
        made = [scheduled(f, self.machine) for f in functions]
        self.progress(f"measuring {len(made)} kernels")
        code, names = self.compiled(made)
        took: dict[str, float] = {}
        for f in (f for f in made if f.name in names):
            if times := self.least(code, [f.name], Operands(f), 3):
                took[f.name] = uses[f.name] * times[f.name]
        return dict(sorted(took.items(), key=lambda item: -item[1]))

    def least(self, code: bytes, names: Sequence[str], operands: Operands, rounds: int = 5) -> dict[str, float]:
        """The shortest times of kernels with the same results as the first one.

        They run in a separate process; if one crashes it, each is tried alone with the first, and those that crash
        again are dropped.
        """
        with alone():
            found = isolated(lambda: Bench(code, names, operands, self.threads).least(rounds))
        if found is not None or len(names) < 2:
            return found or {}
        pairs = (self.least(code, [names[0]], operands, rounds), *self._each(code, names, operands, rounds))
        return {name: seconds for times in pairs for name, seconds in times.items()}

    def _each(self, code: bytes, names: Sequence[str], operands: Operands, rounds: int) -> Iterable[dict[str, float]]:
        for name in names[1:]:
            pair = [names[0], name]
            with alone():
                yield isolated(lambda pair=pair: Bench(code, pair, operands, self.threads).least(rounds)) or {}

    def compiled(self, functions: Sequence[TeFunc]) -> tuple[bytes, list[str]]:
        """A library of kernels, and the names of those that compile."""
        kernels = [self.setup.kernel(f) for f in functions]
        missing = [k for k in kernels if not self.cache.has("kernel", k.key, ".o")]
        parts = [part for j in range(self.jobs) if (part := missing[j :: self.jobs])]
        failed: set[str] = set()
        with ThreadPoolExecutor(self.jobs) as pool:
            for problems in pool.map(lambda part: compile_batch(part, self.setup, self.cache), parts):
                failed |= set(problems)
        whole = [k for k in kernels if k.name not in failed]
        return link([k.key for k in whole], self.setup.tools, self.cache), [k.name for k in whole]

    def table(self) -> str:
        """A table of the gains."""
        won = sorted((t for t in self.done if t.hint), key=lambda t: -t.saved)
        lines = [f"{'ms':>9} {'tuned':>9} {'gain':>5} {'calls':>5}  kernel: choices: nodes"] if won else []
        lines += [
            f"{t.before * 1e3:9.4f} {t.after * 1e3:9.4f} {t.before / t.after:5.2f} {t.uses:5}  {t.kernel}: {t.hint}: "
            f"{shorten(', '.join(t.nodes[:2]), 60)}"
            for t in won
        ]
        saved, total = sum(t.saved for t in won), sum(t.uses * t.before for t in self.done)
        known = sum(t.remembered for t in self.done)
        lines.append(
            f"tuned {len(won)} of {len(self.done)} kernels ({known} remembered, {self.left} not looked at): "
            f"{saved * 1e3:.3f} of {total * 1e3:.3f} ms less, threads: {self.threads}"
        )
        return "\n".join(lines)


def worth_looking_at(took: Mapping[str, float]) -> list[str]:
    """The kernels that take nearly all of a run, given the time of each."""
    total, seen, found = sum(took.values()), 0.0, list[str]()
    for name, seconds in took.items():
        if seen >= _SHARE * total:
            break
        found.append(name)
        seen += seconds
    return found


class _Search:
    """The search for one kernel: each choice alone, then combinations of the best, then the best against the rules."""

    def __init__(self, tuner: Tuner, f: TeFunc, end: float) -> None:
        self.tuner, self.f, self.end = tuner, f, end
        self.base = scheduled(f, tuner.machine)
        self.operands = Operands(self.base)
        self.seen = {_shape_of(self.base)}
        self.ratios: dict[str, float] = {}  # choices -> time, relative to the rules' own
        self.made: dict[str, TeFunc] = {}

    def best(self) -> tuple[str, float, float]:
        """(choices, or None if the rules' own are best; seconds before; seconds after)."""
        singles = [f"{key}={value}" for key, values in TRIED.items() for value in values]
        self._try(singles)
        self._try(self._combinations())
        ranked = sorted((r, hint) for hint, r in self.ratios.items() if r < 1 - _GAIN)
        for _, hint in ranked[:2]:
            before, after = self._duel(hint)
            if after < before * (1 - _GAIN):
                return hint, before, after
        before = self._duel("")[0]
        return "", before, before

    def _combinations(self) -> Iterable[str]:
        """The winners of the most profitable choices, combined."""
        best: dict[str, tuple[float, str]] = {}
        for hint, ratio in self.ratios.items():
            key = hint.partition("=")[0]
            if ratio < 1 - _GAIN / 2 and ratio < best.get(key, (1.0, ""))[0]:
                best[key] = ratio, hint
        chosen = [hint for _, hint in sorted(best.values())[:_COMBINED]]
        for picked in product((False, True), repeat=len(chosen)):
            if sum(picked) > 1:
                yield ", ".join(hint for hint, take in zip(chosen, picked, strict=True) if take)

    def _try(self, hints: Iterable[str]) -> None:
        candidates: list[tuple[str, TeFunc]] = []
        for hint in hints:
            f = scheduled(replace(self.f, hint=hint), self.tuner.machine)
            if _shape_of(f) not in self.seen:
                self.seen.add(_shape_of(f))
                candidates.append((hint, f))
        for k in range(0, len(candidates), _TOGETHER):
            if time.perf_counter() >= self.end:
                return
            self._measure(dict(candidates[k : k + _TOGETHER]))

    def _measure(self, group: Mapping[str, TeFunc]) -> None:
        names = {f"{self.f.name}_{len(self.made) + k}": hint for k, hint in enumerate(group)}
        kernels = [self.base, *(group[hint].with_name(name) for name, hint in names.items())]
        code, compiled = self.tuner.compiled(kernels)
        times = self.tuner.least(code, compiled, self.operands)
        own = times.pop(self.f.name, math.inf)
        self.ratios |= {names[name]: seconds / own for name, seconds in times.items()}
        self.made |= {hint: group[hint] for hint in names.values()}

    def _duel(self, hint: str) -> tuple[float, float]:
        """Medians of the rules' own schedule and of another one, alternating."""
        other = self.made[hint].with_name(f"{self.f.name}_best") if hint else self.base
        code, names = self.tuner.compiled([self.base, other] if hint else [self.base])
        with alone():
            bench = isolated(
                lambda: Bench(code, names, self.operands, self.tuner.threads).pairs(self.f.name, other.name)
            )
        first, second = zip(*(bench or [(math.inf, math.inf)]), strict=True)
        return median(first), median(second)


def _shape_of(f: TeFunc) -> tuple[object, ...]:
    """The structure of a function, without its name."""
    return f.stages, f.schedule


def _uses(m: Module) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """How often each te function is called, and from which ONNX nodes."""
    uses: dict[str, int] = {}
    nodes: dict[str, tuple[str, ...]] = {}
    for op in m.walk():
        if "te" in op.attrs:
            name = op.attrs["te"]
            uses[name] = uses.get(name, 0) + 1
            nodes[name] = (*nodes.get(name, ()), str(op.loc))
    return uses, nodes
