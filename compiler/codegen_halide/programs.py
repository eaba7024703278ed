"""C++ that is compiled once per machine: the generator driver and the native runtime.

The results are stored in the build cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from threading import Thread

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.codegen_halide.front_end import front_end
from occ.compiler.codegen_halide.toolchain import Toolchain, run_all, toolchain
from occ.compiler.diagnostics import CompileError
from occ.compiler.objects.processors import arch_of
from occ.compiler.prebuilt import made_of, prebuilt

# Generators, and the program that runs them, run once, so compile time dominates: no optimisation, no exceptions or
# unwinding.
FLAGS = ("-std=c++17", "-O0", "-fno-rtti", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-w")
# Inline functions of Halide.h would be exported, and libHalide would call these, which are not optimised, instead of
# its own. `-finline`: memory.h asks for optimisation, which does not turn inlining on. The gain is within the noise of
# a loaded machine (0.97 to 1.0 of the time of a kernel).
_EMITTER_FLAGS = ("-fvisibility-inlines-hidden", "-finline")


def native(name: str) -> str:
    """A source file that is part of the compiler."""
    return files("occ.compiler.codegen_halide").joinpath(f"native/{name}").read_text("utf-8")


def runtime_source() -> str:
    """The source of the native runtime, which is part of libocc, as one text."""
    folder = files("occ.runtime").joinpath("c")

    def text(name: str) -> str:
        return re.sub(r'#include "(\w+\.h)"\n', lambda m: text(m[1]), folder.joinpath(name).read_text("utf-8"))

    return text("pool.cpp")


Steps = Sequence[Sequence[Sequence[str]]]
EMITTER, RUNTIME = "emit.bin", "runtime.o"


def emitter_sources() -> dict[str, str]:
    """The sources of the program that compiles kernels."""
    return {**front_end(), "emit.cpp": native("emit.cpp")}


def emitter(tools: Toolchain, cache: Cache, rpath: str = "") -> Path:
    """The program that compiles kernels with Halide, native/emit.cpp; `rpath` overrides where it finds Halide.

    Raises:
        CompileError: OCC0403 the toolchain fails.
    """
    if not rpath and (found := prebuilt_emitter(tools)) is not None:
        return found
    texts = emitter_sources()
    compiled = [*FLAGS, *_EMITTER_FLAGS, f"-I{tools.include}", "-c"]
    rpath = f"-Wl,-rpath,{rpath or tools.library.parent}"  # generators find the symbols of te.h in the program itself
    linked = ["te.o", "emit.o", str(tools.library), rpath, "-rdynamic", "-ldl", "-o", EMITTER]
    # A program of any compiler will do: an upgrade does not compile it again. The C library has to be as recent.
    key = digest([tools.identity, os.confstr("CS_GNU_LIBC_VERSION") or "", *compiled, *linked, *texts.values()])

    def steps() -> Steps:
        cxx = tools.cxx.command
        return [[[*cxx, *compiled, f"{n}.cpp", "-o", f"{n}.o"] for n in ("te", "emit")], [[*cxx, *linked]]]

    return _once(EMITTER, key, texts, cache, steps)


# From compiler/prebuilt to Halide, where both are installed in one folder.
BESIDE = "../../../halide"


def prebuilt_emitter(tools: Toolchain) -> Path | None:
    """A wheel's program that compiles kernels, if it finds the installed Halide."""
    program = prebuilt(EMITTER, made_of(emitter_sources(), tools.halide_version))
    beside = program.parent / BESIDE if program is not None else None
    return program if beside is not None and beside.is_dir() and beside.resolve() == tools.halide.resolve() else None


def runtime_object(tools: Toolchain, cache: Cache) -> Path:
    """The native runtime, runtime/c/pool.cpp.

    Raises:
        CompileError: OCC0403 the toolchain fails.
    """
    texts = {"runtime.cpp": runtime_source()}
    if not tools.sanitizer_flags and (found := prebuilt(RUNTIME, made_of(texts))) is not None:
        return found
    flags = ["-std=c++17", "-O2", "-fPIC", "-fno-exceptions", *tools.sanitizer_flags]
    here = arch_of()
    if tools.compiler is None or (here is not None and tools.compiler == toolchain().compiler):
        # An object of any compiler of this machine will do; without a compiler, one from a store.
        key = digest(["runtime", here.name if here is not None else "", *flags, *texts.values()])
    else:
        key = digest(["runtime", tools.compiler.version, *tools.compiler.command, *flags, *texts.values()])
    return _once(
        RUNTIME, key, texts, cache, lambda: [[[*tools.cxx.command, *flags, "-c", "runtime.cpp", "-o", "runtime.o"]]]
    )


def _once(made: str, key: str, texts: Mapping[str, str], cache: Cache, steps: Callable[[], Steps]) -> Path:
    """A cache entry, which the first process to need it creates while others wait.

    Args:
        made: the file that becomes the entry.
        key: of the entry.
        texts: the files that the commands read.
        cache: the build cache.
        steps: the commands that create it, those of one step in parallel; only evaluated if there is no entry yet.
    """
    suffix = Path(made).suffix
    if cache.has("tool", key, suffix):
        return cache.path("tool", key, suffix)
    with cache.turn(key):
        if cache.has("tool", key, suffix):
            return cache.path("tool", key, suffix)
        with cache.workspace() as folder:
            for name, text in texts.items():
                (Path(folder) / name).write_text(text)
            for commands in steps():
                run_all(commands, Path(folder))
            return cache.adopt("tool", key, Path(folder) / made, suffix)


def prepare(cache: Cache) -> None:
    """Start to compile the programs in the background, where the cache has no kernels.

    Where it has some, a build compiles the emitter if it misses one. Errors reach whoever needs a program; a process
    that ends first, because its model is invalid, does not wait.
    """

    def run(tools: Toolchain) -> None:
        with suppress(CompileError, OSError):
            emitter(tools, cache)
            runtime_object(tools, cache)

    if cache.has_any("kernel", ".o"):
        return
    with suppress(CompileError, OSError):
        Thread(target=run, args=(toolchain(),), name="programs", daemon=True).start()
