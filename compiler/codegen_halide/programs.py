"""What every build needs of C++ and no model changes: the program that runs generators, and the native runtime. They are
compiled once and kept in the build cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from threading import Lock, Thread

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.codegen_halide.emit import front_end
from occ.compiler.codegen_halide.toolchain import Toolchain, run_all, toolchain
from occ.compiler.diagnostics import CompileError

# Generators, and the program that runs them, run once, so compiling them is what takes time: nothing is optimised, and nothing
# thrown or unwound.
FLAGS = ("-std=c++17", "-O0", "-fno-rtti", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-w")
_asking, _turns = Lock(), dict[Path, Lock]()


def native(name: str) -> str:
    """A source file that is part of the compiler."""
    return files("occ.compiler.codegen_halide").joinpath(f"native/{name}").read_text("utf-8")


def runtime_source() -> str:
    """The source of the native runtime, which is part of libocc."""
    return files("occ.runtime").joinpath("c/pool.cpp").read_text("utf-8")


def emitter(tools: Toolchain, cache: Cache) -> Path:
    """The program that compiles kernels with Halide, native/emit.cpp.

    Raises:
        CompileError: OCC0403 the toolchain fails.
    """
    texts = {**front_end(), "emit.cpp": native("emit.cpp")}
    key = digest(["emit", tools.identity, str(tools.library), *FLAGS, *texts.values()])
    rpath = f"-Wl,-rpath,{tools.library.parent}"  # generators find what te.h declares in the program itself

    def make(work: Path) -> Path:
        flags = [*FLAGS, f"-I{tools.include}"]
        run_all([[tools.cxx, *flags, "-c", f"{n}.cpp", "-o", f"{n}.o"] for n in ("te", "emit")], work)
        run_all([[tools.cxx, "te.o", "emit.o", str(tools.library), rpath, "-rdynamic", "-ldl", "-o", "emit"]], work)
        return work / "emit"

    return _once(cache.path("tool", key, ".bin"), texts, make, cache)


def runtime_object(tools: Toolchain, cache: Cache) -> Path:
    """The native runtime, runtime/c/pool.cpp.

    Raises:
        CompileError: OCC0403 the toolchain fails.
    """
    texts = {"runtime.cpp": runtime_source()}
    flags = ["-std=c++17", "-O2", "-fPIC", "-fno-exceptions"]
    key = digest(["runtime", tools.cxx_version, *flags, *texts.values()])

    def make(work: Path) -> Path:
        run_all([[tools.cxx, *flags, "-c", "runtime.cpp", "-o", "runtime.o"]], work)
        return work / "runtime.o"

    return _once(cache.path("tool", key, ".o"), texts, make, cache)


def _once(known: Path, texts: Mapping[str, str], make: Callable[[Path], Path], cache: Cache) -> Path:
    """An entry of the cache, which the first thread to ask for it makes from texts while the others wait."""
    with _asking:
        turn = _turns.setdefault(known, Lock())
    with turn:
        if not known.is_file():
            with cache.workspace() as folder:
                for name, text in texts.items():
                    (Path(folder) / name).write_text(text)
                made = make(Path(folder))
                known.parent.mkdir(parents=True, exist_ok=True)
                made.replace(known)
    return known


def prepare(cache: Cache) -> None:
    """Begin to compile the programs, beside what the caller does next. Errors come to those who need one; a process that
    ends before, because its model is broken, does not wait.
    """

    def run() -> None:
        with suppress(CompileError, OSError):
            emitter(toolchain(), cache)
            runtime_object(toolchain(), cache)

    Thread(target=run, name="programs", daemon=True).start()
