"""The linker of `objects/elf`: data, zeros, addresses in data, thread-local variables and constructors, as a C compiler emits them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from occ.compiler.objects.elf import LinkError, link

FIRST = """
#include <math.h>
#include <stdlib.h>
int shared = 5;
static int zeros[1000];
static const char *const names[] = {"one", "two"};
static double (*volatile functions[])(double) = {cos, sin};
_Thread_local int counter = 7;
static _Thread_local long many[20];
static _Thread_local char last = 3;
static int made;
extern int twice(int);
extern _Thread_local int counter;
__attribute__((constructor)) static void begin(void) { made = 41; }
__attribute__((destructor)) static void end(void) { zeros[0] = 0; }
int started(void) { return made; }
const char *name(int k) { return names[k]; }
double apply(int k, double x) { return functions[k](x); }
int count(void) { many[3] += counter; last++; return ++counter + last; }
long kept(void) { return many[3]; }
int add(int x) { zeros[999] += x; return twice(zeros[999]) + shared; }
void *block(void) { return calloc(4, 4); }
"""
SECOND = """
extern int shared;
extern int weak(void) __attribute__((weak));
int twice(int x) { shared++; return 2 * x; }
int has_weak(void) { return weak != 0; }
"""


@pytest.fixture(scope="module", params=["-O0", "-O2"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("linked")
    if (gcc := shutil.which("gcc")) is None:
        pytest.skip("apt install gcc")
    for name, text in (("first", FIRST), ("second", SECOND)):
        (folder / f"{name}.c").write_text(text)
        subprocess.run([gcc, request.param, "-fPIC", "-c", f"{name}.c"], cwd=folder, check=True)
    made = folder / "linked.so"
    made.write_bytes(link((folder / "first.o").read_bytes(), (folder / "second.o").read_bytes()))
    return ctypes.CDLL(str(made))


def test_data_and_zeros_are_written(library: ctypes.CDLL) -> None:
    before = library.add(0)
    assert [library.add(k) - before for k in (1, 2)] == [2 + 1, 6 + 2]


def test_addresses_in_data_are_those_of_the_process(library: ctypes.CDLL) -> None:
    library.name.restype, library.apply.restype = ctypes.c_char_p, ctypes.c_double
    assert [library.name(k) for k in (0, 1)] == [b"one", b"two"]
    assert library.apply(0, ctypes.c_double(0)) == 1.0


def test_constructors_ran(library: ctypes.CDLL) -> None:
    assert library.started() == 41


def test_each_thread_has_its_variables(library: ctypes.CDLL) -> None:
    found: list[list[int]] = []

    def run() -> None:
        found.append([library.count(), library.count(), library.kept()])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [[8 + 4, 9 + 5, 7 + 8]] * 3


def test_weak_names_that_nobody_defines_are_null(library: ctypes.CDLL) -> None:
    assert library.has_weak() == 0


def test_others_than_objects_are_refused(tmp_path: Path) -> None:
    for data in (b"", b"MZ" * 40, b"\x7fELF\x02\x02" + bytes(60)):
        with pytest.raises(LinkError, match="not an ELF object"):
            link(data)
