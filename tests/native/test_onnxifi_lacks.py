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


@pytest.mark.toolchain
@pytest.mark.parametrize("spare", [0, 1])
def test_no_threads_for_the_measurement_of_the_machine(spare: int, tmp_path: Path):
    """One that has begun is joined: a thread object destroyed while it could be joined would end the process."""
    source = tmp_path / "threads.c"
    source.write_text("""#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
static int left = -1;
void spare_threads(int n) { left = n; }
int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set) {
    (void)process;
    CPU_ZERO_S(size, set);
    for (int k = 0; k < 3; k++) CPU_SET_S(k, size, set);
    return 0;
}
int pthread_create(pthread_t *made, const pthread_attr_t *how, void *(*run)(void *), void *with) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    return left < 0 || left-- > 0 ? real(made, how, run, with) : (left = 0, EAGAIN);
}
""")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", "threads.so"], check=True, cwd=tmp_path)
    program = f"""
from ctypes import CDLL, c_size_t, create_string_buffer
size, room = c_size_t(8), create_string_buffer(8)

def macs():
    return call("GetBackendInfo", ids()[0], 30, room, byref(size))

CDLL(None).spare_threads({spare})
print(macs())
CDLL(None).spare_threads(-1)
print(macs(), int.from_bytes(room.raw, "little") > 10**8)
"""
    environment = {"LD_PRELOAD": str(tmp_path / "threads.so"), "OCC_CACHE_DIR": str(tmp_path / "cache")}
    refused, found, measured = told(tmp_path, program.replace("> 10**8)", "> 10**8 and 1)"), **environment)
    assert refused in (NO_RESOURCES, UNAVAILABLE)
    assert (found, measured) == (0, 1)
