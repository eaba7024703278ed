"""libonnxifi-occ in a process that may have no more files, threads or processes: NO_SYSTEM_RESOURCES, and what functions without
that status answer. What is lacking is there again afterwards, and then all goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NO_MEMORY, NO_RESOURCES, UNAVAILABLE = 0x401, 0x403, 0x405
HERE = Path(__file__).parent
COMMON = """
import os, resource
import numpy as np
from ctypes import byref, c_void_p
from onnxifi_api import IMPLICIT, Descriptor, backend, call, descriptors, fence, graph, ids, made
from building import model_of
# No other test has put this one into the build cache.
MODEL = model_of("g_" + os.urandom(8).hex() + " (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }").SerializeToString()
x, y = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)

def compatible():
    return call("GetBackendCompatibility", ids()[0], len(MODEL), MODEL)

def init():
    g = c_void_p()
    return call("InitGraph", backend(), None, len(MODEL), MODEL, 0, None, byref(g))

def with_limit(kind, value, *functions):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    found = [f() for f in functions]
    resource.setrlimit(kind, before)
    return found
backend()
"""
# Only `spare` numbers of files are left, which are the lowest.
FILES = """
def with_files(spare, *functions):
    numbers = [os.dup(0) for _ in range(spare + 1)]
    for n in numbers:
        os.close(n)
    return with_limit(resource.RLIMIT_NOFILE, numbers[-1], *functions)
"""


def told(tmp_path: Path, program: str, **environment: str) -> list[int]:
    """The numbers that a client prints."""
    env = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"} | environment
    done = subprocess.run(
        [sys.executable, "-c", COMMON + program],
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.toolchain
def test_no_files_for_a_compiler(tmp_path: Path):
    """Neither for the model, nor for the socket; compatibility has no status for it."""
    program = """
for spare in range(3):
    print(*with_files(spare, init, compatible))
print(init())
"""
    assert told(tmp_path, FILES + program) == [NO_RESOURCES, UNAVAILABLE] * 3 + [0]


@pytest.mark.toolchain
def test_no_file_for_what_the_compiler_made(tmp_path: Path):
    """It comes with the answer, and the kernel drops what does not fit."""
    program = "print(compatible(), *with_files(1, compatible), *(with_files(n, init)[0] for n in range(6)))"
    reached, alone, *found = told(tmp_path, FILES + program)
    assert (reached, alone) == (0, 0)
    assert found[:3] == [NO_RESOURCES] * 3, "the model, the artifact, its library"
    assert sorted(set(found)) == [0, NO_RESOURCES]


@pytest.mark.toolchain
def test_no_thread_for_the_runs_of_a_graph(tmp_path: Path):
    """Its stack does not fit into what the process may have of addresses."""
    program = """
g = graph(MODEL)
io = (*descriptors(Descriptor.of("x", x)), *descriptors(Descriptor.of("y", y)))
begin, end = fence(kind=IMPLICIT), fence(kind=IMPLICIT)
pages = int(open("/proc/self/statm").read().split()[0])

def run():
    return call("RunGraph", g, byref(begin), byref(end))

def both():
    return call("SetIOAndRunGraph", g, *io, byref(end))

print(call("SetGraphIO", g, *io))
print(*with_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + (1 << 20), run, both))
print(run(), both(), int(y[0, 0]))
"""
    assert told(tmp_path, program) == [0, NO_RESOURCES, NO_RESOURCES, 0, 0, 1]


@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("error", "statuses"),
    [
        ("EAGAIN", (NO_RESOURCES, UNAVAILABLE)),
        ("ENOMEM", (NO_MEMORY, NO_MEMORY)),
        ("EACCES", (UNAVAILABLE, UNAVAILABLE)),
    ],
)
def test_no_process_for_the_compiler(error: str, statuses: tuple[int, int], tmp_path: Path):
    """As where a user, or a container, may have no more of them."""
    source = tmp_path / "spawn.c"
    source.write_text(f"#include <errno.h>\nint posix_spawnp(void) {{ return {error}; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", "spawn.so"], check=True, cwd=tmp_path)
    assert told(tmp_path, "print(init(), compatible())", LD_PRELOAD=str(tmp_path / "spawn.so")) == list(statuses)
