"""The fuzzer of graphs: a block of seeds at a time, native code of `cpu` for some of them at once."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from occ.compiler.driver.settings import Settings
from tools.fuzz.campaign import Say, Summary, counts
from tools.fuzz.cover import UNIVERSE, Cover
from tools.fuzz.generate import Case, generate
from tools.fuzz.oracle import Reject
from tools.fuzz.patterns import MAKERS
from tools.fuzz.profiles import PROFILES
from tools.fuzz.run import Outcome, Runner, outcomes

WRONG = ("differs", "failed")
EVERY = ("interp", "cpu passes", "cpu-jit passes")


@dataclass
class Graphs:
    """Does graphs.

    Attributes:
        folder: where failing cases are written.
        profiles: that take turns.
        jit, cpu: native code of a target is built for one graph in this many; 0 for none.
        passes: of how many targets a graph goes through the passes; they take turns.
        steer: factors of the weights of operators.
        options: of `cpu`, in addition to those drawn for a graph, such as a sanitizer.
    """

    folder: Path
    profiles: tuple[str, ...] = tuple(PROFILES)
    jit: int = 8
    cpu: int = 64
    passes: int = 1
    steer: dict[str, float] | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __call__(self, first: int, last: int, say: Say) -> None:
        """Do the graphs of some seeds, and say what came out."""
        halide: list[Case] = []
        for seed in range(first, last):
            say({"seed": seed})
            turn = seed // len(self.profiles)
            try:
                case = self.make(seed)
            except Reject as e:
                say({"outcomes": [f"not made: {e}"]})
                continue
            self._case(case, self.ways(turn), say)
            if self.cpu and turn % self.cpu == 0:
                halide.append(case)
        if halide:
            self._compile(halide)
        for case in halide:
            say({"seed": case.seed})
            self._case(case, ["cpu"], say, cases=False)

    def make(self, seed: int) -> Case:
        """The case of a seed.

        Raises:
            Reject: it has none.
        """
        name = self.profiles[seed % len(self.profiles)]
        return generate(seed, name, PROFILES[name], MAKERS, self.steer)

    def ways(self, turn: int) -> list[str]:
        """An artifact of `interp` comes from the same passes as its module, and native code from the same as what is interpreted
        after them, so one of the two will do.
        """
        every = ["cpu passes", "cpu-jit passes", "interp" if turn // 3 % 4 == 0 else "interp passes"]
        chosen = [every[(turn + k) % 3] for k in range(self.passes)]
        if not self.jit or turn % self.jit:
            return chosen
        return [*(w for w in chosen if w != "cpu-jit passes"), "cpu-jit"]

    def _compile(self, cases: list[Case]) -> None:
        """The kernels of many graphs in a few translation units, into the cache."""
        from occ.compiler.tuning.warm import warm

        found = [(json.dumps(self._runner(c).options["cpu"]), c) for c in cases]
        for options in {o for o, _ in found}:
            chosen = [(str(c.seed), c.model) for o, c in found if o == options]
            warm(chosen, Settings("cpu", options=json.loads(options)))

    def _runner(self, case: Case, listeners: Sequence[Any] = ()) -> Runner:
        runner = Runner(case, listeners)
        runner.options = {**runner.options, "cpu": {**runner.options["cpu"], **self.options}}
        return runner

    def _case(self, case: Case, ways: list[str], say: Say, *, cases: bool = True) -> None:
        cover = Cover()
        found = list(outcomes(self._runner(case, [cover]), ways))
        wrong = [o for o in found if o.kind in WRONG]
        if wrong:
            write(case, wrong, self.folder)
        operators = sorted(case.operators)
        say({
            "cases": [case.profile] if cases else [],
            "outcomes": [f"{o.way}: {o.kind}" for o in found],
            "fired": [*(f"{k}: {n}" for k, n in cover.fired), *(f"operators: {n}" for n in operators),
                      *(f"{n} with {o}" for k, n in cover.fired if k == "rewrite rules" or k == "schedule rules" for o in operators)],
            "faults": [(f"{o.way.split()[0]}: {signature(o)}", f"{case.profile}-{case.seed}", o.text[:600]) for o in wrong],
        })  # fmt: skip


def signature(o: Outcome) -> str:
    """What outcomes of one cause have in common, as far as their text shows it."""
    text = re.sub(r"reproducer.*|`[^`]*`|[\d.]+(e[-+]?\d+)?|\[[^]]*\]|%\S+", "_", o.text.split("\n")[0])
    return f"{o.kind} {text[:120]}"


def write(case: Case, wrong: list[Outcome], folder: Path) -> None:
    """Write a failing case: the model, its inputs and what its outputs should be, and what went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{case.profile}-{case.seed}"
    onnx.save(case.model, f"{stem}.onnx")
    wanted = {f"out:{o.name}": case.known[o.name] for o in case.model.graph.output}
    options = {f"option:{name}": np.array(value) for name, value in case.options.items()}
    np.savez(f"{stem}.npz", allow_pickle=False, **(case.feeds | wanted | options))
    Path(f"{stem}.txt").write_text("\n".join(f"{o.way}: {o.kind}: {o.text}" for o in wrong) + "\n")


def read(stem: Path) -> Case:
    """A case that was written; of its values, those of inputs and outputs are known."""
    with np.load(f"{stem}.npz") as data:  # which knows bfloat16 as two bytes without a type
        arrays = {n: x.view(ml_dtypes.bfloat16) if x.dtype == np.dtype("V2") else x for n, x in data.items()}
    options = {n.removeprefix("option:"): str(x) for n, x in arrays.items() if n.startswith("option:")}
    feeds = {n: x for n, x in arrays.items() if not n.startswith(("out:", "option:"))}
    known = feeds | {n.removeprefix("out:"): x for n, x in arrays.items() if n.startswith("out:")}
    profile, _, seed = stem.name.rpartition("-")
    return Case(int(seed) if seed.isdigit() else 0, profile, onnx.load(f"{stem}.onnx"), feeds, known, options)


def steering(summary: Summary) -> dict[str, float]:
    """Factors for operators that were there when rules fired that seldom fire, more often than they are elsewhere."""
    graphs = max(summary.cases.total(), 1)
    factors: Counter[str] = Counter()
    for kind in ("rewrite rules", "schedule rules"):
        for rule in UNIVERSE[kind]:
            n = summary.fired[f"{kind}: {rule}"]
            if 0 < n < graphs / 50:
                lift = {
                    o: summary.fired[f"{rule} with {o}"] / n / max(summary.fired[f"operators: {o}"] / graphs, 1e-9)
                    for o in MAKERS
                }
                factors.update(dict.fromkeys(sorted(lift, key=lambda o: -lift[o])[:3], 1))
    return {o: 1.0 + min(2 * n, 6) for o, n in factors.items()}


def steered(summary: Summary, seed: int) -> dict[str, float]:
    """The factors for a block of seeds: those that it had before, so that a seed is always the same graph; or new ones, which are
    kept.
    """
    if seed >= summary.next:
        now = steering(summary)
        if not summary.steering or summary.steering[-1][1] != now:
            summary.steering.append((seed, now))
        return now
    return next((factors for first, factors in reversed(summary.steering) if first <= seed), {})


def report(summary: Summary) -> str:
    """The state of a campaign for people."""
    lines = [counts(summary)]
    for kind, universe in UNIVERSE.items():
        missing = sorted(n for n in universe if not summary.fired[f"{kind}: {n}"])
        share = 100 * (1 - len(missing) / len(universe))
        lines.append(f"{kind}: {share:.0f} % of {len(universe)}, never: {', '.join(missing) or 'none'}")
    return "\n".join(lines)
