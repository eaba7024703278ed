"""A peer runtime in a separate process, so that memory and threads are separate.

`python -m occ.generation.peer_process NAME MODEL THREADS CAPACITY` reads a line of JSON for each request and answers
with one; `PeerProcess` is the other end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from occ.generation.peer_runtimes import PEER_RUNTIMES, CannotGenerate, OccRuntime, PeerRuntime


class PeerProcess:
    """A runtime that continues texts.

    Args:
        name: out of `PEER_RUNTIMES`.
        model: an artifact for occ, an ONNX file for others.
        threads: of a step.
        capacity: tokens of a text.

    Raises:
        CannotGenerate: the runtime is not installed, or does not support the model.
    """

    def __init__(self, name: str, model: Path, threads: int, capacity: int) -> None:
        command = [sys.executable, "-m", __name__, name, str(model), str(threads), str(capacity)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self._answer()
        except CannotGenerate:
            self.close()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer of the process, see `_answers`.

        Raises:
            CannotGenerate: the runtime fails, or its process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise CannotGenerate(f"its process ended with {self._process.wait()}")
        found = json.loads(line)
        if "error" in found:
            raise CannotGenerate(found["error"])
        return found

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()


def _write(writer: PeerRuntime, ids: Sequence[int], count: int, sampled: bool) -> dict[str, Any]:
    """A text of `count` tokens after the first, and seconds until the first and for all others (wall, processor)."""
    clocks = [_clocks()]
    tokens = [writer.start(ids, sampled=sampled)]
    clocks.append(_clocks())
    tokens += [writer.step() for _ in range(count)]
    clocks.append(_clocks())
    first, rest = ([b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(clocks))
    return {"tokens": tokens, "first": first, "rest": rest}


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _memory(field: str) -> int:
    """Bytes of this process in memory: current (`VmRSS`) or peak (`VmHWM`); 0 if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _answers(name: str, model: Path, threads: int, capacity: int, channel: Any) -> None:
    """Serve requests: `ids` and `count` to generate a text, with `sampled` tokens or the most probable ones.

    `ids` and `tokens` score a text, neither returns peak memory.
    """

    def say(**answer: Any) -> None:
        channel.write(json.dumps(answer) + "\n")
        channel.flush()

    try:
        before = _memory("VmRSS")
        writer = PEER_RUNTIMES[name](model, threads, capacity)
        say()
        for line in sys.stdin:
            match json.loads(line):
                case {"ids": ids, "count": count, **how}:
                    say(**_write(writer, ids, count, how.get("sampled", False)))
                case {"ids": ids, "tokens": tokens} if isinstance(writer, OccRuntime):
                    say(distances=writer.distances(ids, tokens))
                case _:
                    say(memory=max(_memory("VmHWM") - before, 0))
    except Exception as e:  # whatever a runtime raises
        lines = [line for line in str(e).splitlines() if line.strip() and not line.startswith("Exception from")]
        say(error=(lines or [type(e).__name__])[0][:200])


def main() -> None:
    """Answer on the original standard output; what libraries print goes to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, model, threads, capacity = sys.argv[1:]
    _answers(name, Path(model), int(threads), int(capacity), channel)


if __name__ == "__main__":
    main()
