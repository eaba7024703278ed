"""The fuzzer of files: models, texts, artifacts and inputs that were changed. Each must be taken, or refused with a diagnostic:
no other exception, no signal, no half minute, no 4 GB, and no file opened outside of its folder.

Many cases share a process, which notes the one that it is at in memory that it shares with its parent: what ends or hangs
the process is known at the cost of a store.
"""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.random import default_rng

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.source import parsed
from occ.runtime.errors import RunError
from tools.fuzz.campaign import Say
from tools.fuzz.kinds import KINDS, Attempt
from tools.fuzz.watch import watched

SECONDS, BYTES = 30, 4 << 30  # of processor time, and of memory
SILENT = 1.0  # seconds, after which a process says that it lives


class TooLong(BaseException):
    """The time is over; no `except Exception` takes it."""


@dataclass
class Files:
    """Does files.

    Attributes:
        kind: of the files.
        cases: of one seed, which all come from one valid file.
        folder: where files that fail are written.
    """

    kind: str
    cases: int
    folder: Path
    _now: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 16))

    def __post_init__(self) -> None:
        _warm()  # processes inherit it

    def where(self, seed: int) -> str:
        """The case at which a process with a seed was, as `again` takes it."""
        at, case = struct.unpack("<qq", self._now[:16])
        return f"{self.kind}-{seed}-{case}" if at == seed else f"{self.kind}-{seed}"

    def __call__(self, first: int, last: int, say: Say) -> None:
        """Change and use the files of some seeds."""
        limited()
        for seed in range(first, last):
            say({"seed": seed})
            self._seed(seed, say)

    def _seed(self, seed: int, say: Say) -> None:
        counts: Counter[str] = Counter()
        spoken = time.monotonic()
        with _folder() as name:
            folder = Path(name)
            for k, attempt in enumerate(islice(KINDS[self.kind](default_rng([seed, 29]), seed), self.cases)):
                self._now[:16] = struct.pack("<qq", seed, k)
                if time.monotonic() - spoken > SILENT:
                    spoken = time.monotonic()
                    say({"seed": seed})  # that it lives; the counts come with the last case
                wrong, outcome = tried(attempt, folder)
                counts[f"{self.kind}: {outcome}"] += 1
                if wrong:
                    stem = f"{self.kind}-{seed}-{k}"
                    self.folder.mkdir(parents=True, exist_ok=True)
                    (self.folder / stem).write_bytes(attempt.data)
                    (self.folder / f"{stem}.txt").write_text(wrong[1])
                    say({"faults": [(f"{self.kind}: {wrong[0]}", stem, wrong[1][-900:])]})
        say({"cases": {self.kind: counts.total()}, "outcomes": counts})


def attempt_of(name: str) -> Attempt:
    """The case of a name, `kind-seed-number`, made again."""
    kind, seed, number = name.rsplit("-", 2)
    return next(islice(KINDS[kind](default_rng([int(seed), 29]), int(seed)), int(number), None))


def once(name: str) -> tuple[Attempt, tuple[str, str] | None, str]:
    """Run a case again; returns it, its fault, and its outcome."""
    made = attempt_of(name)
    limited()
    with _folder() as folder:
        return made, *tried(made, Path(folder))


def limited() -> None:
    """Bound what this process may take."""
    resource.setrlimit(resource.RLIMIT_AS, (_used() + BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _over)


def tried(attempt: Attempt, folder: Path) -> tuple[tuple[str, str] | None, str]:
    """The fault, if any, and the outcome for a file in one word. The folder is empty before and after."""
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with watched(folder):
            attempt.use(folder)
        outcome: tuple[Any, str] = (None, "taken")
    except (CompileError, RunError) as e:
        codes = [d.code for d in e.diagnostics] if isinstance(e, CompileError) else [e.code]
        internal = [c for c in codes if c in attempt.codes]
        outcome = ((f"{internal[0]} {_where(e)}", _trace(e)), "internal") if internal else (None, "refused")
    except TooLong as e:
        outcome = ((f"over {SECONDS} s in {_where(e)}", _trace(e)), "slow")
    except BaseException as e:
        outcome = ((_where(e), _trace(e)), "raised")
    signal.setitimer(signal.ITIMER_PROF, 0)
    _emptied(folder)
    return outcome if time.process_time() - start < SECONDS else (outcome[0] or ("slow", ""), "slow")


def _folder() -> tempfile.TemporaryDirectory[str]:
    """In memory where there is a place for it: a case writes one to three files."""
    return tempfile.TemporaryDirectory(prefix="occ-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def _emptied(folder: Path) -> None:
    for item in os.scandir(folder):
        if item.is_dir(follow_symlinks=False):
            shutil.rmtree(item)
        else:
            os.unlink(item)


def _warm() -> None:
    """Load the parser of texts."""
    parsed('module @m {stage="inferred"} {\n  func @main(%x: f32[1]) -> f32[1] as "y" {\n    return %x\n  }\n}\n')


def _where(e: BaseException) -> str:
    """The kind of an exception and the innermost place of occ that it came from."""
    while e.__cause__ is not None:
        e = e.__cause__
    frames = [f for f in traceback.extract_tb(e.__traceback__) if "/tools/fuzz/" not in f.filename]
    ours = [f for f in frames if "/compiler/" in f.filename or "/runtime/" in f.filename or "/occ/" in f.filename]
    at = (ours or frames or [None])[-1]
    return f"{type(e).__name__} at {'/'.join(at.filename.split('/')[-3:])}:{at.name}" if at else type(e).__name__


def _trace(e: BaseException) -> str:
    return "".join(traceback.format_exception(e))[-4000:]


def _over(*_: Any) -> None:
    raise TooLong


def _used() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
