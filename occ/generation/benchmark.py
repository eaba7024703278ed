"""Benchmarks of text generation: the same tokens first, then interleaved times."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import numpy as np

from occ.benchmark import PAUSE, Timing, timing
from occ.compiler.targets.default import DEFAULT
from occ.generation.folder import Folder
from occ.generation.model_kinds import LanguageModel
from occ.generation.open import find_or_build
from occ.generation.peer_process import PeerProcess
from occ.generation.peer_runtimes import PEER_RUNTIMES, CannotGenerate
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

PEERS = tuple(name for name in PEER_RUNTIMES if name != "occ")
# By how much another runtime's token may be less probable than the best, relative to the range of logits. Products with
# 8-bit activations (accuracy level 4) change logits of small models by 1 to 2 %.
TOLERANCE = 0.03


@dataclass(frozen=True)
class Speed:
    """The generation speed of a runtime.

    Attributes:
        first: for the prompt, up to the first token.
        token: per token after that.
        memory: peak bytes of the process, minus those before it opened the model.
        alike: tokens that are also the most probable ones according to occ, out of all that the runtime wrote.
        distance: the largest distance of the others from those, relative to the range of the logits.
    """

    first: Timing
    token: Timing
    memory: int
    alike: int
    distance: float


@dataclass
class Comparison:
    """One language model on one number of threads.

    Attributes:
        threads: of a step.
        prompt: tokens of the prompt.
        count: tokens generated after the first one.
        sampled: whether the timed tokens were sampled, with the settings `occ.generation.peer_runtimes.SAMPLED`.
        speeds: by runtime, occ first.
        reasons: why a runtime has no ratio.
    """

    threads: int
    prompt: int
    count: int
    sampled: bool = False
    speeds: dict[str, Speed] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """As JSON data, with tokens per second."""
        made = asdict(self)
        for name, s in self.speeds.items():
            made["speeds"][name] |= {"prefill": self.prompt / s.first.ms * 1e3, "decode": 1e3 / s.token.ms}
        return made

    def lines(self) -> list[str]:
        """A line per runtime; a speed-up only if the tokens agree."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        how = ", sampled" if self.sampled else ""
        made = [f"prefill of {self.prompt} and decode of {self.count} tokens on {threads}{how}, tokens per second"]
        for name, s in self.speeds.items():
            head = (
                f"{name:17} prefill {self.prompt / s.first.ms * 1e3:8.1f} {s.first.steadiness}  decode "
                f"{1e3 / s.token.ms:7.1f} {s.token.steadiness}  first token after {s.first.ms:8.1f} ms  memory "
                f"{s.memory >> 20:5} MiB"
            )
            if name in self.reasons:
                head += f"  no comparison: {self.reasons[name]}"
            elif name != "occ":
                head += f"  occ is {s.first.ratio:.2f}x and {s.token.ratio:.2f}x as fast ({self._agreement(s)})"
            made.append(head)
        return made + [f"{name:17} {reason}" for name, reason in self.reasons.items() if name not in self.speeds]

    def _agreement(self, s: Speed) -> str:
        every = self.count + 1
        rest = "" if s.alike == every else f", others within {s.distance:.1%} of the range of logits"
        return f"{s.alike} of {every} tokens agree{rest}"


def default_peers(folder: Folder) -> list[str]:
    """The runtimes worth comparing with: onnxruntime in the form for which the folder is made, and OpenVINO."""
    made_for_genai = (folder.model.parent / "genai_config.json").exists()
    return [PEERS[0] if made_for_genai and _installed("onnxruntime_genai") else "onnxruntime", "openvino"]


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def compare(
    path: Path, prompt: int, count: int, peers: Sequence[str] | None = None, *, target: str = DEFAULT,
    threads: int | None = None, rounds: int = 5, sampled: bool = False, options: Mapping[str, str] | None = None,
) -> Comparison:  # fmt: skip
    """Time the language model of a folder in occ and in other runtimes, each in a separate process.

    The prompt consists of seeded random tokens. Every runtime continues it greedily; occ then follows what each wrote,
    and reports how close its tokens are to the most probable ones. Timed texts have the same number of tokens, greedy
    or sampled.

    Args:
        path: of a folder, or anything that `occ.LanguageModel` accepts.
        prompt: number of prompt tokens.
        count: tokens to generate after the first.
        peers: out of `PEERS`; None for the result of `default_peers`.
        target: `cpu` or `cpu-jit`.
        threads: of a step; OCC_NUM_THREADS or all processors if None.
        rounds: texts that each runtime generates.
        sampled: whether to time sampled tokens: temperature 0.8, top_p 0.95.
        options: of the target, as `-C` of the command line.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 there is no language model, it does not support so many tokens, or occ cannot run it.
    """
    folder = Folder.of(path)
    capacity = prompt + count + 1
    if folder.context and capacity > folder.context:
        raise RunError(
            "OCC0501",
            f"{prompt} and {count} tokens are more than the model supports, {folder.context}",
            "ask for fewer",
        )
    with ExitStack() as held:
        model = find_or_build(folder, target, options=options)
        if not isinstance(model, Path):
            model = model.save(Path(held.enter_context(tempfile.TemporaryDirectory())) / "model.occ")
        lm = LanguageModel(model, threads, capacity)
        ids = _prompt(lm, prompt)
        made = Comparison(lm.session.threads, prompt, count, sampled)
        del lm
        started: dict[str, PeerProcess] = {}
        greedy: dict[str, list[int]] = {}
        for name in ("occ", *(default_peers(folder) if peers is None else peers)):
            file = model if name == "occ" else folder.model
            try:
                started[name] = held.enter_context(closing(PeerProcess(name, file, made.threads, capacity)))
                greedy[name] = started[name].ask(ids=ids, count=count)["tokens"]
            except CannotGenerate as e:
                if name == "occ":
                    raise RunError("OCC0501", f"occ cannot run `{path}`: {e}", "see `occ generate`") from None
                made.reasons[name] = str(e)
                started.pop(name, None)
        _measure(made, started, ids, greedy, rounds)
    return made


def _prompt(lm: LanguageModel, length: int) -> list[int]:
    """Random tokens, none of which ends a text."""
    words = next(o.shape[-1] for o in lm.session.outputs if o.name == "logits")
    assert isinstance(words, int), "the head of a decoder is a constant"
    usual = np.setdiff1d(np.arange(words), [e for e in lm.eos_ids if e < words])
    return np.random.default_rng(0).choice(usual, length).tolist()


def _measure(
    made: Comparison, started: dict[str, PeerProcess], ids: list[int], greedy: dict[str, list[int]], rounds: int
) -> None:
    """Let the runtimes generate in turn, and record results, or why one fails."""
    names = list(started)
    seen: dict[str, list[dict[str, Any]]] = {n: [] for n in names}
    for k in range(rounds):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            if name in made.reasons:
                continue
            time.sleep(PAUSE)
            try:
                seen[name].append(started[name].ask(ids=ids, count=made.count, sampled=made.sampled))
            except CannotGenerate as e:
                if name == "occ":
                    raise RunError("OCC0501", f"occ cannot generate: {e}", "see `occ generate`") from None
                made.reasons[name] = str(e)
    for name in [n for n in names if n not in made.reasons]:
        first, token = (
            timing(_samples(seen[name], key, each), _samples(seen["occ"], key, each))
            for key, each in (("first", 1), ("rest", made.count))
        )
        distances = started["occ"].ask(ids=ids, tokens=greedy[name])["distances"]
        worst = max(distances)
        made.speeds[name] = Speed(first, token, started[name].ask()["memory"], distances.count(0.0), worst)
        if not worst <= TOLERANCE:
            made.reasons[name] = f"its tokens are up to {worst:.1%} of the range of logits from those of occ"


def _samples(texts: list[dict[str, Any]], key: str, each: int) -> tuple[list[float], list[float]]:
    wall, cpu = ([t[key][clock] / each for t in texts] for clock in (0, 1))
    return wall, cpu
