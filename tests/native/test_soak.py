"""One model in two processes with four threads each for a minute: always the same results, and no growth of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from building import mlp

import occ

SECONDS = 60

WORKER = """
import resource, sys, threading, time
import numpy as np
import occ

path, seconds = sys.argv[1], float(sys.argv[2])
session = occ.load(path, threads=2)
rng = np.random.default_rng(0)
feeds = [{"x": rng.standard_normal((n, 256), dtype=np.float32)} for n in (1, 7, 33, 128, 500)]
expected = [session.run(f)["y"] for f in feeds]
counts, wrong = [0] * 4, []


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def work(k):
    i = k
    while (time.time() < end or not counts[k]) and not wrong:
        if not np.array_equal(session.run(feeds[i % 5])["y"], expected[i % 5]):
            wrong.append((k, i))
        i += 1
        counts[k] += 1


def phase(duration):
    global end
    end = time.time() + duration
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


phase(seconds / 6)  # pools and idle memory come to their size
before = resident()
phase(seconds * 5 / 6)
grown = resident() - before
print(sum(counts), "runs,", grown, "bytes more of", before, flush=True)
assert not wrong, wrong
assert min(counts) > 0
assert grown < 2 << 20, grown
"""


def soak(target: str, folder: Path, seconds: float) -> list[str]:
    path = folder / "soak.occ"
    occ.build(mlp(sizes=(256, 512, 64)), target, out=str(path))
    command = [sys.executable, "-c", WORKER, str(path), str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said: list[str] = []
    for process in running:
        out, errors = process.communicate(timeout=seconds * 3 + 600)
        assert process.returncode == 0, errors
        said.append(out.strip())
    return said


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_a_few_seconds_side_by_side(target: str, tmp_path: Path):
    assert len(soak(target, tmp_path, 3)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_a_minute_side_by_side(target: str, tmp_path: Path):
    print(*soak(target, tmp_path, SECONDS), sep="\n")
