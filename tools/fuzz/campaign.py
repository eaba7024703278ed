"""Campaigns: cases in processes of their own, counted in a summary from which a campaign goes on.

A process takes some seeds in a row. What it says comes line by line, so that the seed at which one ends or hangs is known.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 60  # without a word from a process, half of which it computes
Say = Callable[[dict[str, Any]], None]  # `seed`, what `Summary.take` books, and `doing` and `case` of what is next
Work = Callable[[int, int, Say], None]  # seeds from and to; says what comes out


@dataclass
class Summary:
    """The state of a campaign; a JSON file.

    Attributes:
        next: the first seed that has not been taken.
        cases: by kind of case.
        outcomes: by way and kind, as `way: kind`.
        fired: what the cases reached, as `kind: name`.
        faults: by what identifies them: how often, the first case, a text.
        steering: what weighed the choices of seeds, from the first one of each.
    """

    next: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    steering: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def read(cls, file: Path) -> Summary:
        """The summary in a file; an empty one if there is none."""
        if not file.is_file():
            return cls()
        made = cls(**json.loads(file.read_text()))
        made.cases, made.outcomes, made.fired = Counter(made.cases), Counter(made.outcomes), Counter(made.fired)
        return made

    def write(self, file: Path) -> None:
        """Write it so that a file is never half written."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(vars(self), indent=1))
        part.replace(file)

    def fault(self, key: str, case: str, text: str) -> bool:
        """Book a fault; whether it is the first of its kind."""
        known = self.faults.setdefault(key, {"count": 0, "case": case, "text": text})
        known["count"] += 1
        return known["count"] == 1

    def take(self, said: dict[str, Any]) -> None:
        """Book what a process said of one case."""
        self.cases.update(said.get("cases", []))
        self.outcomes.update(said.get("outcomes", []))
        self.fired.update(said.get("fired", []))
        for key, case, text in said.get("faults", []):
            self.fault(key, case, text)


def counts(summary: Summary) -> str:
    """Cases, outcomes and faults for people."""
    kinds = ", ".join(f"{n} {k}" for k, n in summary.cases.items())
    lines = [f"{summary.cases.total()} cases ({kinds}) in {summary.seconds:.0f} s"]
    lines += [f"  {way}: {n}" for way, n in sorted(summary.outcomes.items())]
    most = sorted(summary.faults.items(), key=lambda item: -item[1]["count"])
    return "\n".join([*lines, *(f"FAULT {f['count']} x {key} (first: {f['case']})" for key, f in most)])


def campaign(
    work: Work,
    file: Path,
    seeds: Iterable[range],
    until: float,
    tell: Callable[[Summary, int], None],
    patience: int = SECONDS,
    where: Callable[[int], str] = str,
) -> Summary:
    """Run blocks of seeds one after the other until a time.

    Args:
        work: does the cases of a block in a process of its own.
        file: of the summary.
        seeds: the blocks.
        until: seconds since the epoch.
        tell: called with the state before each block, and its first seed.
        patience: seconds without a word from a process, after which it is ended.
        where: names the case at which a process ended, from its seed.
    """
    summary = Summary.read(file)
    for block in seeds:
        if time.time() >= until:
            break
        tell(summary, block.start)
        at = block.start
        while at < block.stop and time.time() < until:
            start = time.perf_counter()
            at = _process(work, at, block.stop, summary, patience, where)
            summary.next = max(summary.next, at)
            summary.seconds += time.perf_counter() - start
            summary.write(file)
    return summary


def _process(work: Work, first: int, last: int, summary: Summary, patience: int, where: Callable[[int], str]) -> int:
    """Do cases in one process; returns the seed to go on with, which is past one that ended the process."""
    source, sink = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(source)
        _child(work, first, last, sink)
    os.close(sink)
    seed, silent, at = first, False, {}
    with os.fdopen(source, "rb", buffering=0) as f:
        for line in _lines(f, child, patience):
            if line is None:
                silent = True
                os.kill(child, signal.SIGKILL)
                break
            said = json.loads(line)
            seed, at = said.get("seed", seed), said
            summary.take(said)
    _, status = os.waitpid(child, 0)
    if silent or status:
        what = f"silent for {patience} s" if silent else f"the process ended with {_ending(status)}"
        summary.fault(f"{what}{at.get('doing', '')}", at.get("case") or where(seed), what)
        return seed + 1
    return last


def _ending(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"


def _lines(f: Any, child: int, patience: int) -> Iterable[bytes | None]:
    """Lines in order; None after a time-out.

    It is ten times as long if the process computes nothing, and does not count while it waits for a processor.
    """
    rest = b""
    while True:
        before = _processor_time(child)
        idle = 0
        while not select.select([f], [], [], patience)[0]:
            idle += not _wants_processor(child)
            if idle == 10 or _processor_time(child) - before >= patience / 2:
                yield None
                return
        data = f.read(1 << 16)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        yield from whole


def _processor_time(process: int) -> float:
    """Seconds that a process has computed for."""
    fields = _state(f"/proc/{process}")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _state(process: str | Path) -> list[str]:
    """The fields of a process or thread that Linux tells, from its state on."""
    return Path(process, "stat").read_text().rpartition(")")[2].split()


def _wants_processor(process: int) -> bool:
    """Whether a process or what it has started computes, or would if a processor were free."""
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            if _state(thread)[0] in "RD":
                return True
            if any(_wants_processor(int(p)) for p in (thread / "children").read_text().split()):
                return True
    return False


def _child(work: Work, first: int, last: int, sink: int) -> None:
    def say(what: dict[str, Any]) -> None:
        os.write(sink, json.dumps(what).encode() + b"\n")

    code = 1
    gc.freeze()  # what is there already is not walked over again and again
    gc.set_threshold(100_000, 20, 100)
    try:
        work(first, last, say)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
