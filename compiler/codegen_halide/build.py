"""te functions to a shared library through Halide: sources, generators, objects, link; every step cached by content."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from occ.compiler.cache import Cache, digest
from occ.compiler.codegen_halide.emit import generator, prelude, source
from occ.compiler.codegen_halide.toolchain import Toolchain, run_all, toolchain
from occ.compiler.ir.te import TeFunc

FEATURES = ("no_runtime", "no_asserts", "no_bounds_query")  # the runtime checks shapes; kernels only compute
_UNITS = 2  # translation units compiled at once; more pay for the headers again, fewer leave a core idle


@dataclass
class Built:
    """What a build gives.

    Attributes:
        code: the shared library; nothing where the target is another kind of machine.
        sources: the generated sources, by file name; with their Makefile they rebuild the library.
        compiled: kernels that were compiled in this build.
        cached: kernels that came from the cache.
        target: the Halide target.
        objects: the kernels and the native runtime before linking, by file name.
        cache: where the objects lie; kept, because a disabled one goes away with its owner.
    """

    code: bytes
    sources: dict[str, bytes]
    compiled: int
    cached: int
    target: str
    objects: dict[str, Path]
    cache: Cache


def halide_target(name: str) -> str:
    """The Halide target string of an option value such as `host`."""
    return "-".join([name, *(f for f in FEATURES if f not in name)])


def native(name: str) -> str:
    """A source file that is part of the compiler."""
    return files("occ.compiler.codegen_halide").joinpath(f"native/{name}").read_text("utf-8")


def build(
    functions: Sequence[TeFunc],
    nodes: Mapping[str, Sequence[str]],
    cache: Cache,
    *,
    target: str = "host",
    jobs: int = 2,
) -> Built:
    """Build the kernels of a model.

    Args:
        functions: te functions with schedules; their names are the symbols.
        nodes: ONNX nodes of each function, for the comments.
        cache: where objects are kept.
        target: Halide target, or `host`.
        jobs: processes at once.

    Raises:
        CompileError: OCC0401 to OCC0403, the toolchain is missing or fails.
    """
    tools = toolchain()
    host = _host_target(tools, cache)
    full = halide_target(target if target != "host" else host)
    is_here = full.split("-")[:3] == host.split("-")[:3]
    header = prelude()
    texts = {f.name: generator(f, nodes.get(f.name, ())) for f in functions}
    keys = {n: digest(["kernel", tools.identity, full, header, _without_comments(t)]) for n, t in texts.items()}
    missing = [n for n in texts if not cache.has("kernel", keys[n], ".o")]
    if missing:
        _compile(missing, texts, keys, header, full, tools, cache, jobs)
    objects = {f"{n}.o": cache.path("kernel", keys[n], ".o") for n in texts}
    code = b""
    if is_here:
        runtime = _runtime_object(tools, cache)
        code = _link(list(objects.values()), runtime, [keys[n] for n in texts], tools, cache)
        objects["runtime.o"] = runtime
    return Built(code, sources(texts, header, full), len(missing), len(texts) - len(missing), full, objects, cache)


def sources(texts: Mapping[str, str], header: str, target: str) -> dict[str, bytes]:
    """The files of `src/`."""
    units = {f"kernels_{k}.cpp": source([texts[n] for n in part]) for k, part in enumerate(_parts(list(texts)))}
    makefile = native("Makefile.in").replace("@TARGET@", target).replace("@KERNELS@", " ".join(texts))
    all_ = {
        "te.h": header,
        "emit.cpp": native("emit.cpp"),
        "runtime.cpp": native("runtime.cpp"),
        "Makefile": makefile,
        **units,
    }
    return {name: text.encode() for name, text in all_.items()}


def _without_comments(text: str) -> str:
    return re.sub(r"\s*//[^\n]*", "", text)


def _parts(names: list[str]) -> list[list[str]]:
    """Names dealt out to the translation units."""
    return [part for k in range(_UNITS) if (part := names[k::_UNITS])]


def _compile(
    names: list[str], texts: Mapping[str, str], keys: Mapping[str, str], header: str, target: str, tools: Toolchain,
    cache: Cache, jobs: int,
) -> None:  # fmt: skip
    """Compile generators and run them; kernels go into the cache one by one."""
    with cache.workspace() as folder:
        work = Path(folder)
        (work / "te.h").write_text(header)
        (work / "emit.cpp").write_text(native("emit.cpp"))
        units = ["emit.cpp"]
        for k, part in enumerate(_parts(names)):
            units.append(f"kernels_{k}.cpp")
            (work / units[-1]).write_text(source([texts[n] for n in part]))
        flags = _generator_flags(tools, cache, header)
        run_all(
            [[tools.cxx, *flags, "-c", u, "-o", u.replace(".cpp", ".o")] for u in units[1:]]
            + [_emit_object(tools, cache, work)],
            work,
        )
        _keep_emit_object(tools, cache, work)
        rpath = f"-Wl,-rpath,{tools.library.parent}"
        run_all([[tools.cxx, *(u.replace(".cpp", ".o") for u in units), str(tools.library), rpath, "-o", "emit"]], work)
        (work / "out").mkdir()
        run_all([[str(work / "emit"), "out", target, str(max(jobs, 1)), *names]], work)
        for n in names:
            cache.adopt("kernel", keys[n], work / "out" / f"{n}.o", ".o")


def _generator_flags(tools: Toolchain, cache: Cache, header: str) -> list[str]:
    """Flags for generator sources. From the second cold build on, the headers are precompiled: that takes as long as
    three builds save, so a first build does without.
    """
    base = ["-std=c++17", "-O0", "-fno-rtti", "-w", f"-I{tools.include}"]
    key = digest(["pch", tools.identity, header])
    ready = cache.path("pch", key, "/te.h.gch")
    if not ready.is_file():
        seen = cache.path("pch", key, ".seen")
        if not seen.is_file():
            cache.put("pch", key, b"", ".seen")
            return base
        _precompile(tools, cache, header, base, ready)
    return [f"-I{ready.parent}", "-include", "te.h", *base]


def _precompile(tools: Toolchain, cache: Cache, header: str, base: list[str], ready: Path) -> None:
    with cache.workspace() as folder:
        work = Path(folder)
        (work / "te.h").write_text(header)
        run_all([[tools.cxx, *base, "-x", "c++-header", "te.h", "-o", "te.h.gch"]], work)
        ready.parent.mkdir(parents=True, exist_ok=True)
        (work / "te.h").replace(ready.parent / "te.h")
        (work / "te.h.gch").replace(ready)


def _emit_key(tools: Toolchain) -> str:
    return digest(["emit", tools.identity, native("emit.cpp")])


def _emit_object(tools: Toolchain, cache: Cache, work: Path) -> list[str]:
    """The command that puts emit.o into the workspace."""
    known = cache.path("tool", _emit_key(tools), ".o")
    if known.is_file():
        return ["cp", str(known), str(work / "emit.o")]
    return [tools.cxx, "-std=c++17", "-O0", "-w", f"-I{tools.include}", "-c", "emit.cpp", "-o", "emit.o"]


def _keep_emit_object(tools: Toolchain, cache: Cache, work: Path) -> None:
    key = _emit_key(tools)
    if not cache.has("tool", key, ".o"):
        cache.put("tool", key, (work / "emit.o").read_bytes(), ".o")


def _runtime_object(tools: Toolchain, cache: Cache) -> Path:
    """The native runtime, compiled once."""
    text = native("runtime.cpp")
    key = digest(["runtime", tools.cxx_version, text])
    known = cache.path("tool", key, ".o")
    if not known.is_file():
        with cache.workspace() as folder:
            work = Path(folder)
            (work / "runtime.cpp").write_text(text)
            run_all(
                [[tools.cxx, "-std=c++17", "-O2", "-fPIC", "-fno-exceptions", "-c", "runtime.cpp", "-o", "runtime.o"]],
                work,
            )
            cache.adopt("tool", key, work / "runtime.o", ".o")
    return known


def _link(objects: Sequence[Path], runtime: Path, keys: Sequence[str], tools: Toolchain, cache: Cache) -> bytes:
    """The shared library of some objects; the same objects give the same bytes."""
    key = digest(["link", tools.cxx_version, runtime.name, *keys])
    known = cache.path("library", key, ".so")
    if not known.is_file():
        with cache.workspace() as folder:
            work = Path(folder)
            flags = ["-shared", "-Wl,--build-id=none", "-Wl,-soname,model.so", "-Wl,-z,noexecstack"]
            listing = work / "objects.txt"
            listing.write_text("\n".join(f'"{p}"' for p in [*objects, runtime]))
            run_all([[tools.cxx, *flags, f"@{listing}", "-o", "model.so", "-lm", "-lpthread"]], work)
            cache.adopt("library", key, work / "model.so", ".so")
    return known.read_bytes()


def _host_target(tools: Toolchain, cache: Cache) -> str:
    """The Halide target of this machine, spelled out, so that the cache tells machines apart."""
    probe = tools.halide / "bin" / "get_host_target"
    known = digest(["host", tools.identity, _cpu_identity()])
    path = cache.path("tool", known, ".txt")
    if path.is_file():
        return path.read_text()
    try:
        found = subprocess.run([str(probe)], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "host"
    cache.put("tool", known, found.encode(), ".txt")
    return found


def _cpu_identity() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
