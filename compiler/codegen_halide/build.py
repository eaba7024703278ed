"""Builds a shared library from te functions: generator sources, objects, link."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.codegen_halide.compile_kernels import compile_kernels
from occ.compiler.codegen_halide.kernels import Setup, sources
from occ.compiler.codegen_halide.programs import prebuilt_emitter, runtime_object
from occ.compiler.codegen_halide.progress import Tell
from occ.compiler.codegen_halide.toolchain import Toolchain, cross_compiler, run_all, toolchain
from occ.compiler.diagnostics import error
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.objects import elf
from occ.compiler.objects.processors import arch_of
from occ.runtime.dataclass import dataclass
from occ.runtime.machine import processors

_LINK = ("-shared", "-Wl,--build-id=none", "-Wl,-soname,model.so", "-Wl,-z,noexecstack", "-lm", "-lpthread")
FEATURES = ("no_runtime", "no_asserts", "no_bounds_query")  # the runtime checks shapes; kernels only compute
_SANITIZERS = {"address": ("asan",), "thread": ("tsan",)}  # Halide supports none for undefined behaviour


class EntryFiles(Protocol):
    """The native entry of a model: an object file in the cache, and its sources."""

    @property
    def object(self) -> Path: ...

    @property
    def text(self) -> Path: ...


@dataclass
class Built:
    """The result of a build.

    Attributes:
        code: the shared library; empty if there is no compiler for the target machine, or it loads no libraries.
        sources: the generated sources, by file name; with their Makefile they rebuild the library.
        took: seconds for each kernel compiled in this build; the others came from the cache.
        objects: the kernels and the native runtime before linking, by file name.
        cache: where the objects are; referenced, because a disabled cache disappears with its owner.
    """

    code: bytes
    sources: dict[str, bytes]
    took: dict[str, float]
    objects: dict[str, Path]
    cache: Cache


def halide_target(name: str, sanitize: str = "off") -> str:
    """The Halide target string of an option value such as `host`, with a sanitizer."""
    return "-".join([name, *(f for f in (*FEATURES, *_SANITIZERS.get(sanitize, ())) if f not in name)])


def build(
    functions: Sequence[TeFunc],
    nodes: Mapping[str, Sequence[str]],
    setup: Setup,
    cache: Cache,
    *,
    jobs: int = 2,
    entry: EntryFiles | None = None,
    tell: Tell = lambda _: None,
) -> Built:
    """Build the kernels of a model.

    Args:
        functions: te functions with schedules; their names are the symbols.
        nodes: ONNX nodes of each function, for the comments.
        setup: see `setup_for`.
        cache: where objects are stored.
        jobs: concurrent processes.
        entry: the native entry of the model.
        tell: called with the number of compiled kernels.

    Raises:
        CompileError: OCC0401 to OCC0403, the toolchain is missing or fails.
    """
    linker = linker_for(setup)
    compiled = compile_kernels([setup.kernel(f, nodes.get(f.name, ())) for f in functions], setup, cache, jobs, tell)
    kernels = compiled.kernels
    objects = {f"{k.name}.o": cache.path("kernel", k.key, ".o") for k in kernels}
    code = b""
    if linker is not None and entry is not None:
        objects["entry.o"] = entry.object
    if linker is not None and is_loaded(setup.target):
        objects["runtime.o"] = runtime_object(linker, cache)
        code = link([k.key for k in kernels], linker, cache, objects.get("entry.o"))
    files = sources(kernels, setup)
    if entry is not None:
        files["entry.ll"] = entry.text.read_bytes()
    return Built(code, files, compiled.took, objects, cache)


def setup_for(target: str, cache: Cache, sanitize: str = "off") -> tuple[Setup, bool]:
    """The compilation setup for a Halide target, and whether its kernels run on this machine.

    Args:
        target: Halide target, or `host`.
        cache: where the host's setup is stored.
        sanitize: a sanitizer, as in `-C sanitize`.

    Raises:
        CompileError: OCC0401, OCC0402, a part of the toolchain is missing, and the cache has no kernels.
    """
    tools = replace(toolchain(), sanitize=sanitize)
    if tools.compiler is None and not cache.has_any("kernel", ".o") and prebuilt_emitter(tools) is None:
        _ = tools.cxx  # nothing can be built
    host = _host_target(tools, cache)
    full = halide_target(target if target != "host" else host, sanitize)
    return Setup.of(tools, full), full.split("-")[:3] == host.split("-")[:3]


def linker_for(setup: Setup) -> Toolchain | None:
    """The compiler and linker for the machine that kernels are built for.

    None if there is none for its kind.

    Raises:
        CompileError: OCC0401 the compiler that an environment variable names does not exist.
    """
    arch = arch_of(setup.target)
    if arch is not None and arch == arch_of() and setup.tools.compiler is None:
        return setup.tools
    cxx = cross_compiler(arch) if arch is not None else None
    return replace(setup.tools, compiler=cxx) if cxx is not None else None


def is_loaded(target: str) -> bool:
    """Whether machines of that kind can load libraries into running programs."""
    arch = arch_of(target)
    return arch is not None and arch.system == "linux"


def link(keys: Sequence[str], tools: Toolchain, cache: Cache, entry: Path | None = None) -> bytes:
    """The shared library of the kernels with these keys and an entry.

    Equal inputs produce equal bytes.

    Raises:
        CompileError: OCC0403 the toolchain fails.
    """
    runtime = runtime_object(tools, cache)
    objects = [*(cache.path("kernel", k, ".o") for k in keys), runtime, *([entry] if entry is not None else [])]
    linker = "occ" if tools.compiler is None else tools.compiler.version
    key = digest(["link", linker, *_LINK, runtime.name, entry.name if entry is not None else "", *keys])
    known = cache.path("library", key, ".so")
    if not cache.has("library", key, ".so"):
        if tools.compiler is None:
            return cache.put("library", key, _linked(objects), ".so").read_bytes()
        with cache.workspace() as folder:
            work = Path(folder)
            listing = work / "objects.txt"
            listing.write_text("\n".join(f'"{p}"' for p in objects))
            run_all([[*tools.cxx.command, f"@{listing}", *_LINK, "-o", "model.so"]], work)
            known = cache.adopt("library", key, work / "model.so", ".so")
    return known.read_bytes()


def _linked(objects: Sequence[Path]) -> bytes:
    try:
        return elf.link(*(p.read_bytes() for p in objects))
    except elf.LinkError as e:
        raise error("OCC0401", f"no C++ compiler links this model: {e}", help="install one (`apt install g++`)") from e


def _host_target(tools: Toolchain, cache: Cache) -> str:
    """The Halide target of this machine, spelled out, so that the cache distinguishes machines."""
    probe = tools.halide / "bin" / "get_host_target"
    known = digest(["host", tools.identity, cpu_identity()])
    if cache.has("tool", known, ".txt"):
        return cache.path("tool", known, ".txt").read_text()
    try:
        found = subprocess.run([str(probe)], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "host"
    cache.put("tool", known, found.encode(), ".txt")
    return found


def cpu_identity() -> str:
    told = {f"{name}: {p[name]}" for p in processors() for name in ("model name", "flags", "Features") if name in p}
    return "\n".join(sorted(told)) or "unknown"
