"""Builds and installs libocc, the C runtime (runtime/c)."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest
from occ.compiler.codegen_halide.toolchain import Compiler, compiler, cross_compiler, run_all
from occ.compiler.objects.archive import archive
from occ.compiler.objects.processors import Arch, arch_of
from occ.compiler.prebuilt import made_of, prebuilt
from occ.compiler.standalone.systems import LINUX, System, system_of
from occ.runtime.version import occ_version

PUBLIC = ("occ.h", "occ.hpp")  # headers for programs
# Halide runtime functions that kernels call. Programs may have Halide pipelines of their own, so they are renamed.
HALIDE = ("halide_do_par_for", "halide_malloc", "halide_free", "halide_error", "halide_error_out_of_memory")
# No exceptions, type information or guarded statics: nothing of the C++ library is needed.
FLAGS = (
    "-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden", "-Wall",
)  # fmt: skip
SHARED = ("-shared", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,-z,nodelete", "-Wl,--as-needed")
SYSTEM = LINUX.libraries
_TEMPLATES = {"occ.pc.in": "pkgconfig/occ.pc", "occ-config.cmake.in": "cmake/occ/occ-config.cmake"}


LIBOCC = "libocc"  # of a wheel


def sources() -> dict[str, str]:
    """The files of runtime/c, by name."""
    folder = files("occ.runtime").joinpath("c")
    return {p.name: p.read_text("utf-8") for p in sorted(folder.iterdir(), key=lambda p: p.name)}


def compiler_for(arch: Arch | None) -> Compiler:
    """The C++ compiler for a kind of machine; this machine's if there is none, or for None.

    Raises:
        CompileError: OCC0401 there is none here either.
    """
    return (cross_compiler(arch) if arch is not None else None) or compiler()


def libocc(cache: Cache, arch: Arch | None = None) -> Path:
    """The folder that libocc is installed in, for a kind of machine; for this one if None.

    It has include/occ.h, lib/libocc.a and the objects in it, and on Linux lib/libocc.so and files for pkg-config and
    CMake. It can be moved.

    Raises:
        CompileError: OCC0401 there is no C++ compiler; OCC0403 it fails.
    """
    texts = sources()
    if arch in (None, arch_of()) and (found := prebuilt(LIBOCC, made_of(texts, *FLAGS, occ_version()))) is not None:
        return found
    cxx, system = compiler_for(arch), system_of(arch)
    command = [Path(cxx.command[0]).name, *cxx.command[1:]]
    archives = source_digest("occ.compiler.objects")
    key = digest(
        [
            "libocc",
            archives,
            cxx.version,
            *command,
            *FLAGS,
            *system.flags,
            *SHARED,
            *HALIDE,
            occ_version(),
            *texts,
            *texts.values(),
        ]
    )
    made = cache.path("tool", key, ".libocc")
    if made.is_dir():
        return made
    with cache.turn(key), cache.workspace() as folder:
        if not made.is_dir():
            _install(Path(folder), texts, cxx, system)
            move_in(Path(folder) / "installed", made)
    return made


def move_in(built: Path, made: Path) -> None:
    """Turn a folder that was built into a cache entry.

    Raises:
        OSError: it cannot be.
    """
    made.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(built, made)
    except OSError:
        if not made.is_dir():  # without locks, another process may just have made it
            raise


def _install(work: Path, texts: dict[str, str], cxx: Compiler, system: System) -> None:
    for name, text in texts.items():
        (work / name).write_text(text)
    units = [n for n in texts if n.endswith(".cpp")]
    renamed = [f"-D{name}=occ_{name}" for name in HALIDE]
    command = [*cxx.command, *FLAGS, *system.flags, *renamed, "-DOCC_LIBOCC", "-c"]
    for k in range(0, len(units), 2):  # one source per command: Zig accepts no more
        run_all([[*command, n, "-o", f"{Path(n).stem}.o"] for n in units[k : k + 2]], work)
    include, lib = work / "installed/include", work / "installed/lib"
    include.mkdir(parents=True)
    (lib / "objects").mkdir(parents=True)
    objects = [(work / n).with_suffix(".o").rename(lib / f"objects/occ_{Path(n).stem}.o") for n in units]
    for name in PUBLIC:
        (include / name).write_text(texts[name])
    (lib / "libocc.a").write_bytes(archive({p.name: p.read_bytes() for p in objects}))
    if system is not LINUX:
        return
    command = [
        *cxx.command,
        *SHARED,
        "-Wl,-z,defs",
        "-Wl,-soname,libocc.so",
        *map(str, objects),
        *SYSTEM,
        "-o",
        str(lib / "libocc.so"),
    ]
    run_all([command], work)
    for name, place in _TEMPLATES.items():
        (lib / place).parent.mkdir(parents=True)
        (lib / place).write_text(texts[name].replace("@VERSION@", occ_version()))
