"""Generators to object files: translation units, one program that runs the generators of some, objects in the cache."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from occ.compiler.cache import Cache, digest
from occ.compiler.codegen_halide.emit import generator, prelude, source
from occ.compiler.codegen_halide.toolchain import Toolchain, run_all
from occ.compiler.diagnostics import CompileError, error
from occ.compiler.ir.te import TeFunc

UNITS = 2  # translation units compiled at once; more pay for the headers again, fewer leave a core idle
_SECONDS = 900  # that Halide may take for one kernel


@dataclass(frozen=True)
class Kernel:
    """A kernel on its way to an object file.

    Attributes:
        name: its symbol, which names its content: equal names stand for equal kernels.
        text: the C++ class of its generator.
        key: of the object in the cache.
    """

    name: str
    text: str
    key: str


@dataclass(frozen=True)
class Setup:
    """What all kernels of a build share: the toolchain, the Halide target in full, and the header of the generators."""

    tools: Toolchain
    target: str
    header: str

    @classmethod
    def of(cls, tools: Toolchain, target: str) -> Setup:
        return cls(tools, target, prelude())

    def kernel(self, f: TeFunc, nodes: Sequence[str] = ()) -> Kernel:
        """The kernel of a te function; `nodes` are the ONNX nodes that it computes, for the comments."""
        text = generator(f, nodes)
        key = digest(["kernel", self.tools.identity, self.target, self.header, _without_comments(text)])
        return Kernel(f.name, text, key)


def native(name: str) -> str:
    """A source file that is part of the compiler."""
    return files("occ.compiler.codegen_halide").joinpath(f"native/{name}").read_text("utf-8")


def parts(texts: Mapping[str, str]) -> list[list[str]]:
    """Names of kernels dealt out to the translation units, so that all have about as much text: the longest first, each to
    the unit that has least.
    """
    units: list[list[str]] = [[] for _ in range(UNITS)]
    sizes = [0] * UNITS
    for name in sorted(texts, key=lambda n: (-len(texts[n]), n)):
        k = sizes.index(min(sizes))
        units[k].append(name)
        sizes[k] += len(texts[name])
    return [sorted(unit, key=list(texts).index) for unit in units if unit]


def _without_comments(text: str) -> str:
    return re.sub(r"\s*//[^\n]*", "", text)


def compile_kernels(kernels: Sequence[Kernel], setup: Setup, cache: Cache, jobs: int) -> None:
    """Compile the kernels of one model into the cache: in two translation units at once, then `jobs` kernels at once.

    Raises:
        CompileError: OCC0403 the toolchain fails.
    """
    by_name = {k.name: k for k in kernels}
    units = [[by_name[n] for n in part] for part in parts({k.name: k.text for k in kernels})]
    failed = _run(units, setup, cache, jobs, _precompiled(setup, cache, always=False), batch=False)
    for problem in failed.values():
        raise problem


def compile_batch(kernels: Sequence[Kernel], setup: Setup, cache: Cache) -> dict[str, CompileError]:
    """Compile some kernels of many models in one translation unit; one that fails does not keep the others back.

    Args:
        kernels: a bounded number of them, so that the compiler's memory is.
        setup: as for all.
        cache: where the objects go.

    Returns:
        The errors, by the name of the kernel.
    """
    headers = _precompiled(setup, cache, always=True)
    try:
        return _run([list(kernels)], setup, cache, 1, headers, batch=len(kernels) > 1)
    except CompileError as problem:
        if len(kernels) == 1:
            return {kernels[0].name: problem}
        bad = _named_by(problem, kernels)
    half = len(kernels) // 2
    rest = [[k for k in kernels if k not in bad]] if bad else [kernels[:half], kernels[half:]]
    failed: dict[str, CompileError] = {}
    for group in [*([k] for k in bad), *filter(None, rest)]:
        failed |= compile_batch(group, setup, cache)
    return failed


def _named_by(problem: CompileError, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels of a translation unit that the compiler complains of, by the lines that its errors name."""
    text = "\n".join(problem.diagnostics[0].notes)
    lines = {int(n) for n in re.findall(r"kernels_0\.cpp:(\d+):\d+: (?:fatal )?error", text)}
    bad: list[Kernel] = []
    first = source([]).count("\n") + 1
    for k in kernels:
        last = first + k.text.count("\n")
        if any(first <= n <= last for n in lines):
            bad.append(k)
        first = last + 1
    return bad if len(bad) < len(kernels) else []


def prepare_batch(setup: Setup, cache: Cache) -> None:
    """Compile what all batches share, so that they find it and a toolchain that is broken is found at once.

    Raises:
        CompileError: OCC0403 the toolchain fails.
    """
    _precompiled(setup, cache, always=True)
    with cache.workspace() as folder:
        _compile([], setup.tools, cache, Path(folder))


def _run(
    units: Sequence[Sequence[Kernel]], setup: Setup, cache: Cache, jobs: int, headers: Path | None, *, batch: bool
) -> dict[str, CompileError]:
    """Compile generators and run them; gives the errors of those that Halide does not compile. In a batch errors repeat
    all that the tools say, because kernels are told apart by it.

    Raises:
        CompileError: OCC0403 a translation unit does not compile or link.
    """
    tools = setup.tools
    kernels = [k for unit in units for k in unit]
    lines = 2000 if batch else 12
    with cache.workspace() as folder:
        work = Path(folder)
        flags = _flags(setup.tools)
        if headers is None:
            (work / "te.h").write_text(setup.header)
        else:  # a te.h beside the source would be taken instead of the precompiled one
            flags = [f"-I{headers}", "-include", "te.h", *flags]
        names = [f"kernels_{k}" for k in range(len(units))]
        for name, unit in zip(names, units, strict=True):
            (work / f"{name}.cpp").write_text(source([k.text for k in unit]))
        emit = _compile([[*flags, "-c", f"{n}.cpp", "-o", f"{n}.o"] for n in names], tools, cache, work, lines=lines)
        rpath = f"-Wl,-rpath,{tools.library.parent}"
        run_all([[tools.cxx, str(emit), *(f"{n}.o" for n in names), str(tools.library), rpath, "-o", "emit"]], work)
        (work / "out").mkdir()
        command = [
            str(work / "emit"),
            "out",
            setup.target,
            str(max(jobs, 1)),
            str(_SECONDS),
            *(k.name for k in kernels),
        ]
        problem: CompileError | None = None
        try:
            run_all([command], work, lines=lines)
        except CompileError as e:
            problem = e
        return _adopt(kernels, work / "out", cache, problem)


def _adopt(kernels: Sequence[Kernel], out: Path, cache: Cache, problem: CompileError | None) -> dict[str, CompileError]:
    failed: dict[str, CompileError] = {}
    for k in kernels:
        made = out / f"{k.name}.o"
        if made.is_file():
            cache.adopt("kernel", k.key, made, ".o")
            continue
        said = problem.diagnostics[0].notes[1:] if problem is not None else ()
        at = next((n for n, line in enumerate(said) if line.startswith(f"{k.name}:")), 8)
        about = said[max(at - 6, 0) : at + 4]  # a process that was ended has said why before
        failed[k.name] = error("OCC0403", f"Halide does not compile the kernel `{k.name}`", notes=about)
    return failed


def _flags(tools: Toolchain) -> list[str]:
    """Generators run once, so compiling them is what takes time: nothing is optimised, and nothing thrown or unwound."""
    lean = ["-O0", "-fno-rtti", "-fno-exceptions", "-fno-asynchronous-unwind-tables"]
    return ["-std=c++17", *lean, "-w", f"-I{tools.include}"]


def _precompiled(setup: Setup, cache: Cache, *, always: bool) -> Path | None:
    """The folder of the precompiled header. It is made from the second cold build on: that takes as long as three builds
    save, so a first build does without unless `always`.
    """
    key = digest(["pch", setup.tools.identity, setup.header])
    ready = cache.path("pch", key, "/te.h.gch")
    if not ready.is_file():
        if not always and not cache.has("pch", key, ".seen"):
            cache.put("pch", key, b"", ".seen")
            return None
        with cache.workspace() as folder:
            work = Path(folder)
            (work / "te.h").write_text(setup.header)
            run_all([[setup.tools.cxx, *_flags(setup.tools), "-x", "c++-header", "te.h", "-o", "te.h.gch"]], work)
            ready.parent.mkdir(parents=True, exist_ok=True)
            (work / "te.h").replace(ready.parent / "te.h")
            (work / "te.h.gch").replace(ready)
    return ready.parent


def _compile(units: Sequence[Sequence[str]], tools: Toolchain, cache: Cache, work: Path, *, lines: int = 12) -> Path:
    """Run the compiler with the arguments of some translation units, and beside them on the program that runs generators,
    if that is not in the cache yet; gives the object of the program.

    Raises:
        CompileError: OCC0403 one does not compile.
    """
    text = native("emit.cpp")
    key = digest(["emit", tools.identity, text])
    arguments = [*units]
    if missing := not cache.has("tool", key, ".o"):
        (work / "emit.cpp").write_text(text)
        arguments.append(["-std=c++17", "-O0", "-w", f"-I{tools.include}", "-c", "emit.cpp", "-o", "emit.o"])
    if arguments:
        run_all([[tools.cxx, *a] for a in arguments], work, lines=lines)
    if missing:
        cache.adopt("tool", key, work / "emit.o", ".o")
    return cache.path("tool", key, ".o")


def sources(texts: Mapping[str, str], setup: Setup) -> dict[str, bytes]:
    """The files of `src/`, which rebuild the library with their Makefile."""
    units = {f"kernels_{k}.cpp": source([texts[n] for n in part]) for k, part in enumerate(parts(texts))}
    makefile = native("Makefile.in").replace("@TARGET@", setup.target).replace("@KERNELS@", " ".join(texts))
    all_ = {
        "te.h": setup.header,
        "emit.cpp": native("emit.cpp"),
        "runtime.cpp": native("runtime.cpp"),
        "Makefile": makefile,
        **units,
    }
    return {name: text.encode() for name, text in all_.items()}
