"""Keys of the build cache cover all that an entry depends on: a changed file or library is another key."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from building import mlp

from occ.compiler.cache import sources
from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide import build as halide
from occ.compiler.codegen_halide import kernels, programs
from occ.compiler.codegen_halide.toolchain import Compiler, Toolchain
from occ.compiler.codegen_llvm import build as llvm
from occ.compiler.codegen_llvm.machine import code_machine
from occ.compiler.codegen_llvm.optimization_level import LEAST, QUICK, WHOLE
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.native_entry import build as entry
from occ.compiler.objects.processors import ARCHES
from occ.compiler.tuning.tune import Tuner
from occ.runtime.manifest import Manifest, Plan

EMPTY = Manifest("m", "cpu", "", [], [], [], [], [], Plan([], [], [], [], []))
TOOLS = Toolchain(Compiler(("/usr/bin/c++",), "c++ 1"), Path("/halide"), "21")
APART = {"occ.compiler", "occ.compiler.diagnostics", "occ.compiler.codes"}  # report an error, and create nothing
HERE = code_machine("host", 256)
BODY = TeFunc("mine", (), (), (), (), halide="y() = 1;")
FIRST, SECOND = list(Compilation(mlp(), Settings("cpu-jit")).advance("lowered").te.values())[:2]


@pytest.fixture(autouse=True)
def fresh():
    yield
    sources.source_digest.cache_clear()
    llvm._identity.cache_clear()


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    monkeypatch.setattr(Toolchain, "library", property(lambda self: Path(__file__)))


def changed(monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, file: str) -> None:
    """Let a package be a copy in which one file says something more."""
    found = importlib.import_module(package)
    copy = Path(shutil.copytree(found.__path__[0], folder / "copy", ignore=shutil.ignore_patterns("__pycache__")))
    (copy / file).write_text((copy / file).read_text() + "\n# changed\n")
    monkeypatch.setattr(found, "__path__", [str(copy)])
    sources.source_digest.cache_clear()


@pytest.mark.parametrize(
    ("package", "file"),
    [
        *(("occ.runtime", f) for f in ("buffers.py", "dims.py", "attributes.py", "signature.py", "manifest.py")),
        *(("occ.runtime", f"native/{f}.py") for f in ("call", "library")),
        *(("occ.compiler.native_entry", f) for f in ("arena.py", "routine.py", "loops.py", "types.py")),
    ],
)
def test_the_entry_depends_on_what_says_where_things_lie(package, file, monkeypatch, tmp_path):
    before = entry.entry_key(EMPTY, ARCHES[0])
    changed(monkeypatch, tmp_path, package, file)
    assert entry.entry_key(EMPTY, ARCHES[0]) != before


def test_the_entry_depends_on_llvm_the_machine_and_the_plan(monkeypatch):
    keys = [entry.entry_key(EMPTY, ARCHES[0]), entry.entry_key(EMPTY, ARCHES[1])]
    keys.append(entry.entry_key(replace(EMPTY, plan=replace(EMPTY.plan, arena=64)), ARCHES[0]))
    monkeypatch.setattr(entry, "version_of", lambda name: f"another {name}")
    keys.append(entry.entry_key(EMPTY, ARCHES[0]))
    assert len(set(keys)) == len(keys)


def test_all_that_the_entry_imports_is_in_its_key():
    code = (
        "import sys, occ.compiler.native_entry.build, occ.compiler.native_entry.entry;"
        "print(*(m for m in sys.modules if m.startswith('occ.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [m for m in done.stdout.split() if m not in APART and not m.startswith("occ.compiler.cache")]
    assert len(loaded) > 20
    assert [m for m in loaded if not m.startswith(entry.PACKAGES)] == []


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("occ.compiler.codegen_llvm", "emit.py"),
        ("occ.compiler.ir", "te/approx.py"),
        ("occ.runtime", "native/library.py"),
    ],
)
def test_a_kernel_of_llvm_depends_on_what_emits_it(package, file, monkeypatch, tmp_path):
    before = llvm.kernel_key(FIRST, HERE, WHOLE)
    changed(monkeypatch, tmp_path, package, file)
    llvm._identity.cache_clear()
    assert llvm.kernel_key(FIRST, HERE, WHOLE) != before


def test_a_kernel_of_llvm_depends_on_its_text_its_symbol_the_machine_and_the_effort():
    keys = [llvm.kernel_key(f, HERE, WHOLE) for f in (FIRST, FIRST.with_name("other"), SECOND)]
    noted = replace(FIRST, stages=tuple(replace(s, note="node 7") for s in FIRST.stages))
    assert llvm.kernel_key(noted, HERE, WHOLE) == keys[0]
    keys.append(llvm.kernel_key(FIRST, replace(HERE, cpu="another"), WHOLE))
    keys += [llvm.kernel_key(FIRST, HERE, effort) for effort in (QUICK, LEAST)]
    assert len(set(keys)) == len(keys)


def test_all_that_kernels_of_llvm_import_is_in_their_key():
    code = "import sys, occ.compiler.codegen_llvm.build; print(*(m for m in sys.modules if m.startswith('occ.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [m for m in done.stdout.split() if m not in APART and not m.startswith("occ.compiler.cache")]
    assert [m for m in loaded if not m.startswith((*llvm.PACKAGES, "occ.compiler.objects"))] == []


def test_every_source_of_the_package_is_listed():
    listed = [f.name for f in sources.files_of("occ.compiler.codegen_halide")]
    assert {"emit.py", "te.h", "whole.h", "Makefile.in"} <= set(listed)
    assert not [n for n in listed if n.endswith(".pyc")]


@pytest.mark.parametrize(
    "file",
    [
        "te.h",
        "te.cpp",
        "wraps.h",
        "arithmetic.h",
        "border_loads.h",
        "fetch_ahead.h",
        "fetch_beyond.h",
        "byte_pairs.h",
        "dense_rows.h",
        "lane_sums.h",
        "mends.h",
        "packed_codes.h",
        "repeats.h",
        "settle.h",
        "tap_pairs.h",
        "whole_loops.h",
        "used_lanes.h",
        "whole_vectors.h",
        "whole.h",
        "large_pages.h",
        "emit.cpp",
    ],
)
def test_a_kernel_depends_on_the_texts_that_it_is_compiled_with(file, monkeypatch):
    before = kernels.Setup.of(TOOLS, "host").kernel(BODY).key
    front, native = kernels.front_end(), kernels.native
    if file in front:
        monkeypatch.setattr(kernels, "front_end", lambda: {**front, file: front[file] + "// changed"})
    else:
        monkeypatch.setattr(kernels, "native", lambda name: native(name) + ("// changed" if name == file else ""))
    assert kernels.Setup.of(TOOLS, "host").kernel(BODY).key != before


def test_a_kernel_depends_on_what_stands_above_it(monkeypatch):
    before = kernels.Setup.of(TOOLS, "host").identity
    monkeypatch.setattr(kernels, "source", lambda functions, whole=False: '#include "other.h"')
    assert kernels.Setup.of(TOOLS, "host").identity != before


def test_two_slashes_in_the_body_of_a_user_are_no_comment():
    setup = kernels.Setup.of(TOOLS, "host")
    one, two = (setup.kernel(replace(BODY, halide=f'y() = hash("//{k}");')).key for k in range(2))
    assert one != two


def test_what_was_tuned_depends_on_the_rules(monkeypatch, tmp_path):
    tuner = Tuner("host", None, 0.0, Cache(tmp_path), 1)
    tuner.__dict__["setup"] = kernels.Setup.of(TOOLS, "host")
    before = tuner._key(BODY)
    changed(monkeypatch, tmp_path, "occ.compiler.passes", "lower/rule_list.py")
    assert tuner._key(BODY) != before


def test_programs_depend_on_the_commands_that_make_them(monkeypatch, tmp_path):
    made: list[Path] = []

    def compiled(commands, where):
        for command in commands:
            (where / command[-1]).write_bytes(b"object")

    monkeypatch.setattr(programs, "run_all", compiled)
    made.append(programs.emitter(TOOLS, Cache(tmp_path)))
    assert made[0].read_bytes() == b"object"
    monkeypatch.setattr(programs, "FLAGS", (*programs.FLAGS, "-g"))
    made.append(programs.emitter(TOOLS, Cache(tmp_path)))
    monkeypatch.setattr(os, "confstr", lambda _: "another C library")
    made.append(programs.emitter(TOOLS, Cache(tmp_path)))
    assert len(set(made)) == 3
    upgraded = replace(TOOLS, compiler=Compiler(("newer-g++",), "c++ 2"))
    assert programs.emitter(upgraded, Cache(tmp_path)) == made[-1], "a program of any compiler will do"
    assert programs.emitter(replace(TOOLS, compiler=None), Cache(tmp_path)) == made[-1]


def test_programs_are_prepared_where_there_are_no_kernels(monkeypatch, tmp_path):
    asked: list[str] = []
    monkeypatch.setattr(programs, "toolchain", lambda: asked.append("toolchain") or TOOLS)
    monkeypatch.setattr(programs, "emitter", lambda *_: asked.append("emitter"))
    monkeypatch.setattr(programs, "runtime_object", lambda *_: asked.append("runtime"))
    programs.prepare(Cache(tmp_path))
    for thread in threading.enumerate():
        if thread.name == "programs":
            thread.join()
    assert asked == ["toolchain", "emitter", "runtime"]
    Cache(tmp_path).put("kernel", "0" * 32, b"object", ".o")
    programs.prepare(Cache(tmp_path))
    assert len(asked) == 3


def test_of_several_that_need_a_program_one_makes_it(monkeypatch, tmp_path):
    commands: list[object] = []

    def compiled(step, where):
        commands.extend(step)
        time.sleep(0.05)
        for command in step:
            (where / command[-1]).write_bytes(b"object")

    monkeypatch.setattr(programs, "run_all", compiled)
    asking = [threading.Thread(target=programs.runtime_object, args=(TOOLS, Cache(tmp_path))) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(commands) == 1


def test_a_library_depends_on_how_it_is_linked(monkeypatch, tmp_path):
    cache, linked = Cache(tmp_path), []

    def run(commands, where):
        linked.append(commands)
        (where / "model.so").write_bytes(b"library")

    monkeypatch.setattr(halide, "run_all", run)
    monkeypatch.setattr(halide, "runtime_object", lambda tools, cache: cache.put("tool", "runtime", b"", ".o"))
    halide.link([], TOOLS, cache)
    halide.link([], TOOLS, cache)
    monkeypatch.setattr(halide, "_LINK", (*halide._LINK, "-O"))
    halide.link([], TOOLS, cache)
    assert len(linked) == 2
