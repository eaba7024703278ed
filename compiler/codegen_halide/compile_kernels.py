"""Compiles Halide generators to object files, in parallel processes, through the cache."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.kernels import OF_USERS, UNIT_FLAGS, Kernel, Setup, units
from occ.compiler.codegen_halide.programs import emitter, native, prebuilt_emitter
from occ.compiler.codegen_halide.progress import Tell, counted
from occ.compiler.codegen_halide.toolchain import Toolchain, run_all
from occ.compiler.diagnostics import CompileError, error
from occ.runtime.dataclass import dataclass

_SECONDS = 60.0  # processor seconds that Halide may take for one kernel: those of real models take up to 6 (Zen 4)
_BOUND = {
    "LD_BIND_NOW": "1"
}  # symbols of Halide are looked up once, not by the process of each kernel: 0.98 to 0.99 of the time
_ENDLESS = ".json"  # appended to a kernel that takes longer


@dataclass(frozen=True)
class Compiled:
    """The kernels of a model, all in the cache.

    Attributes:
        kernels: as requested; kernels whose Halide compilation timed out have the fallback schedule.
        took: seconds that Halide took for each kernel that was not in the cache, by name.
    """

    kernels: list[Kernel]
    took: dict[str, float]


def compile_kernels(
    kernels: Sequence[Kernel], setup: Setup, cache: Cache, jobs: int, tell: Tell = lambda _: None
) -> Compiled:
    """Compile the kernels of one model that are not in the cache.

    `jobs` kernels are compiled at once. Those whose compilation times out, or did so in an earlier build, get the
    fallback schedule, with a `RuntimeWarning`.

    Raises:
        CompileError: OCC0401 as `to_compile`; OCC0403 the toolchain fails.
    """
    given_up = {k.name for k in kernels if _is_endless(k, cache)}
    first = to_compile(kernels, setup, cache)
    how = _Effort(jobs, _SECONDS, tell=tell)
    made = _run(first, setup, cache, how) if first else _Made({}, {})
    for k in first:
        if made.took.get(k.name) == inf and k.simpler is not None:
            cache.put("kernel", k.key, json.dumps({"seconds": _SECONDS}).encode(), _ENDLESS)
            given_up.add(k.name)
    taken = [_simplified(k) if k.name in given_up else k for k in kernels]
    rest = [k for k in taken if k.name in given_up and not cache.has("kernel", k.key, ".o")]
    again = _run(rest, setup, cache, replace(how, seconds=10 * _SECONDS)) if rest else _Made({}, {})
    for problem in ({n: p for n, p in made.failed.items() if n not in given_up} | again.failed).values():
        raise problem
    return Compiled(taken, {n: t for n, t in (made.took | again.took).items() if t < inf})


def to_compile(kernels: Sequence[Kernel], setup: Setup, cache: Cache) -> list[Kernel]:
    """The kernels that are not in the cache, and that no build has given up on.

    Raises:
        CompileError: OCC0401 there are such kernels, and no C++ compiler for the program that compiles them, or for
            bodies of users.
    """
    found = [k for k in kernels if not cache.has("kernel", k.key, ".o") and not _is_endless(k, cache)]
    if found and setup.tools.compiler is None and (any(k.of_user for k in found) or not prebuilt_emitter(setup.tools)):
        raise error(
            "OCC0401",
            f"no C++ compiler was found, and {len(found)} of {len(kernels)} kernels are not in the build cache",
            help="install one (`apt install g++`), import a store that has them (`occ cache --import FILE`), or "
            "build with `-O1` or `-t cpu-jit`, which need none",
        )
    return found


def _is_endless(kernel: Kernel, cache: Cache) -> bool:
    """Whether a build has given up on the kernel, after at least the seconds allowed today."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return json.loads(cache.path("kernel", kernel.key, _ENDLESS).read_bytes())["seconds"] >= _SECONDS
    return False


def _simplified(kernel: Kernel) -> Kernel:
    """The kernel with the fallback schedule, with a `RuntimeWarning`."""
    assert kernel.simpler is not None
    text = (
        f"Halide did not compile the kernel `{kernel.name}` in {_SECONDS:g} seconds: it falls back to plain "
        "loops, and is slow"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    return kernel.simpler()


def compile_batch(kernels: Sequence[Kernel], setup: Setup, cache: Cache) -> dict[str, CompileError]:
    """Compile kernels of many models together; one that fails does not affect the others.

    Args:
        kernels: a bounded number.
        setup: shared by all.
        cache: where the objects go.

    Returns:
        The errors, by kernel name.
    """
    try:  # errors include the full output of the tools, which attributes them to kernels
        how = _Effort(1, _SECONDS, lines=2000 if len(kernels) > 1 else 12)
        return _run(kernels, setup, cache, how).failed
    except CompileError as problem:  # a body of a user is no C++
        if len(kernels) == 1:
            return {kernels[0].name: problem}
    half = len(kernels) // 2
    return compile_batch(kernels[:half], setup, cache) | compile_batch(kernels[half:], setup, cache)


@dataclass(frozen=True)
class _Made:
    """Results of compiling kernels, by name: Halide's errors, and seconds of compilation."""

    failed: dict[str, CompileError]
    took: dict[str, float]


@dataclass(frozen=True)
class _Effort:
    """How a toolchain is run.

    Attributes:
        jobs: kernels at once.
        seconds: processor seconds that Halide may take for one kernel.
        lines: lines of the tools' output that errors include.
        tell: called with the number of compiled kernels.
    """

    jobs: int
    seconds: float
    lines: int = 12
    tell: Tell = lambda _: None


def _run(kernels: Sequence[Kernel], setup: Setup, cache: Cache, how: _Effort) -> _Made:
    """Run generators: those that the compiler wrote from their text, users' compiled.

    Raises:
        CompileError: OCC0403 the translation unit of users' bodies does not compile.
    """
    tools = setup.tools
    with cache.workspace() as folder:
        work, out = Path(folder), Path(folder) / "out"
        files = _write_units(kernels, work)
        if f"{OF_USERS}.cpp" in files:
            how.tell("compiling the bodies of users' kernels")
            run_all([_compiled(OF_USERS, tools)], work, lines=how.lines)
            files[files.index(f"{OF_USERS}.cpp")] = f"./{OF_USERS}.so"
        out.mkdir()
        longest = sorted(kernels, key=lambda k: (-len(k.text), k.name))  # slow last kernels would leave a core idle
        limits = [str(max(how.jobs, 1)), str(how.seconds)]
        command = [str(emitter(tools, cache)), "out", setup.target, *limits, *files, *(k.name for k in longest)]
        problem: CompileError | None = None
        try:
            with counted(out, len(kernels), "compiling kernel", how.tell):
                run_all([command], work, lines=how.lines, env=_BOUND)
        except CompileError as e:
            problem = e
        took = (line.split() for line in (out / "seconds.txt").read_text().splitlines())
        return _Made(_adopt(kernels, out, cache, problem), {name: float(seconds) for name, seconds in took})


def _write_units(kernels: Sequence[Kernel], folder: Path) -> list[str]:
    """Write translation units, and the headers of users' bodies; returns the names of the files."""
    texts = {f"{name}.cpp": text for name, text in units(kernels).items()}
    headers = {header: native(header) for header in ("te.h", "whole.h")} if f"{OF_USERS}.cpp" in texts else {}
    for name, text in {**texts, **headers}.items():
        (folder / name).write_text(text)
    return list(texts)


def _compiled(unit: str, tools: Toolchain) -> list[str]:
    """The command that compiles a translation unit."""
    return [*tools.cxx.command, *UNIT_FLAGS, f"-I{tools.include}", f"{unit}.cpp", "-o", f"{unit}.so"]


def _adopt(kernels: Sequence[Kernel], out: Path, cache: Cache, problem: CompileError | None) -> dict[str, CompileError]:
    failed: dict[str, CompileError] = {}
    for k in kernels:
        made = out / f"{k.name}.o"
        if made.is_file():
            cache.adopt("kernel", k.key, made, ".o")
            continue
        said = problem.diagnostics[0].notes[1:] if problem is not None else ()
        at = next((n for n, line in enumerate(said) if line.startswith(f"{k.name}:")), len(said))
        about = said[max(at - 6, 0) : at + 4]  # a terminated process has already reported why
        failed[k.name] = error("OCC0403", f"Halide does not compile the kernel `{k.name}`", notes=about)
    return failed
