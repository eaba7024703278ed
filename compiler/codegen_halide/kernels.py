"""Compiles Halide generators to object files, in parallel processes, through the cache."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.codegen_halide.counting import Tell, counted
from occ.compiler.codegen_halide.emit import generator, source
from occ.compiler.codegen_halide.front_end import front_end
from occ.compiler.codegen_halide.programs import FLAGS, emitter, native, runtime_source
from occ.compiler.codegen_halide.toolchain import Toolchain, run_all
from occ.compiler.diagnostics import CompileError, error
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.passes.lower.schedule import plain
from occ.compiler.targets.machine import Machine

UNITS = 2  # translation units compiled at once
_SHORT = 8_000  # bytes of generators in one unit: g++ takes 55 ms to start and 5 ms for 1,000 bytes (g++ 12, AMD EPYC)
_SECONDS = 60.0  # of a processor that Halide may take for one kernel: those of real models take up to 6 (Zen 4)
_ENDLESS = ".json"  # the note on a kernel that takes longer
_OF_USERS = "user_kernels"  # the translation unit of bodies that users wrote
_UNIT = (*FLAGS, "-shared", "-fPIC")
# What ours need is in the program that loads them. To link no libraries saves a fifth of the time: 66 ms in place of 82 for a
# product of two kernels (g++ 12).
_ALONE = ("-nostdlib",)


@dataclass(frozen=True)
class Kernel:
    """A kernel on its way to an object file.

    Attributes:
        name: its symbol, which names its content: equal names stand for equal kernels.
        text: the C++ class of its generator.
        key: of the object in the cache.
        of_user: whether a user wrote its body, in all of Halide.
        simpler: the same with plain loops, for Halide that does not end with its schedule.
    """

    name: str
    text: str
    key: str
    of_user: bool = False
    simpler: Callable[[], Kernel] | None = None


@dataclass(frozen=True)
class Setup:
    """What all kernels of a build share: the toolchain, the Halide target, a digest for cache keys."""

    tools: Toolchain
    target: str
    identity: str

    @classmethod
    def of(cls, tools: Toolchain, target: str) -> Setup:
        texts = (*front_end().values(), native("whole.h"), native("emit.cpp"), source([]), source([], whole=True))
        return cls(tools, target, digest([tools.identity, target, *_UNIT, *_ALONE, *texts]))

    def kernel(self, f: TeFunc, nodes: Sequence[str] = ()) -> Kernel:
        """The kernel of a te function; `nodes` are the ONNX nodes that it computes, for the comments."""
        text = generator(f, nodes, halves_in_f32={"f16c", "arm_fp16"}.isdisjoint(self.target.split("-")))
        key = digest(["kernel", self.identity, text if f.halide else _without_comments(text)])
        simpler = None if f.halide else lambda: replace(self.kernel(plain(f, Machine()), nodes), simpler=None)
        return Kernel(f.name, text, key, bool(f.halide), simpler)


def units(kernels: Sequence[Kernel], count: int = UNITS) -> dict[str, str]:
    """Translation units by name: kernels distributed so that all have about as much text.

    The longest first, each to the unit that has least; and one unit of kernels that users wrote. A short text is one
    unit.
    """
    count = min(count, 1 + sum(len(k.text) for k in kernels) // _SHORT)
    dealt: list[list[Kernel]] = [[] for _ in range(count)]
    sizes = [0] * count
    for kernel in sorted(kernels, key=lambda k: (-len(k.text), k.name)):
        if not kernel.of_user:
            k = sizes.index(min(sizes))
            dealt[k].append(kernel)
            sizes[k] += len(kernel.text)
    order = {k.name: at for at, k in enumerate(kernels)}
    made = {
        f"kernels_{k}": source([kernel.text for kernel in sorted(unit, key=lambda kernel: order[kernel.name])])
        for k, unit in enumerate(filter(None, dealt))
    }
    if own := [k.text for k in kernels if k.of_user]:
        made[_OF_USERS] = source(own, whole=True)
    return made


def _without_comments(text: str) -> str:
    """The text of a generator of ours: models that differ in the names of their nodes share kernels.

    In a body that a user wrote, two slashes may be within a string.
    """
    return re.sub(r"\s*//[^\n]*", "", text)


@dataclass(frozen=True)
class Compiled:
    """The kernels of a model, all in the cache.

    Attributes:
        kernels: as asked for, with others instead of those with which Halide did not end.
        took: seconds that Halide took for each that was not in the cache, by name.
    """

    kernels: list[Kernel]
    took: dict[str, float]


def compile_kernels(
    kernels: Sequence[Kernel], setup: Setup, cache: Cache, jobs: int, tell: Tell = lambda _: None
) -> Compiled:
    """Compile the kernels of one model that are not in the cache.

    Translation units at once (`units`), then `jobs` kernels at once. Kernels whose compilation does not end, or did not
    in an earlier build, get the fallback schedule, and a `RuntimeWarning` says so.

    Raises:
        CompileError: OCC0401 kernels are missing, and there is no C++ compiler; OCC0403 the toolchain fails.
    """
    given_up = {k.name for k in kernels if _is_endless(k, cache)}
    first = to_compile(kernels, setup, cache)
    made = _run(first, UNITS, setup, cache, jobs, lines=12, tell=tell) if first else _Made({}, {})
    for k in first:
        if made.took.get(k.name) == inf and k.simpler is not None:
            cache.put("kernel", k.key, json.dumps({"seconds": _SECONDS}).encode(), _ENDLESS)
            given_up.add(k.name)
    taken = [_simplified(k) if k.name in given_up else k for k in kernels]
    rest = [k for k in taken if k.name in given_up and not cache.has("kernel", k.key, ".o")]
    again = _run(rest, UNITS, setup, cache, jobs, lines=12, tell=tell, seconds=10 * _SECONDS) if rest else _Made({}, {})
    for problem in ({n: p for n, p in made.failed.items() if n not in given_up} | again.failed).values():
        raise problem
    return Compiled(taken, {n: t for n, t in (made.took | again.took).items() if t < inf})


def to_compile(kernels: Sequence[Kernel], setup: Setup, cache: Cache) -> list[Kernel]:
    """The kernels that are not in the cache, and that no build has given up.

    Raises:
        CompileError: OCC0401 there are such kernels, and there is no C++ compiler.
    """
    found = [k for k in kernels if not cache.has("kernel", k.key, ".o") and not _is_endless(k, cache)]
    if found and setup.tools.compiler is None:
        raise error(
            "OCC0401",
            f"no C++ compiler was found, and {len(found)} of {len(kernels)} kernels are not in the build cache",
            help="install one (`apt install g++`), import a store that has them (`occ cache --import FILE`), or build with "
            "`-t cpu-jit`, which needs none",
        )
    return found


def _is_endless(kernel: Kernel, cache: Cache) -> bool:
    """Whether a build has given up the kernel, after as many seconds as it may take today."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return json.loads(cache.path("kernel", kernel.key, _ENDLESS).read_bytes())["seconds"] >= _SECONDS
    return False


def _simplified(kernel: Kernel) -> Kernel:
    """The kernel with plain loops; a `RuntimeWarning` says so."""
    assert kernel.simpler is not None
    text = f"Halide did not compile the kernel `{kernel.name}` in {_SECONDS:g} seconds: it has plain loops now, and is slow"
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    return kernel.simpler()


def compile_batch(kernels: Sequence[Kernel], setup: Setup, cache: Cache) -> dict[str, CompileError]:
    """Compile some kernels of many models in one translation unit; one that fails does not keep the others back.

    Args:
        kernels: a bounded number of them, so that the compiler's memory is.
        setup: as for all.
        cache: where the objects go.

    Returns:
        The errors, by the name of the kernel.
    """
    try:  # errors repeat all that the tools say, because kernels get apart by it
        return _run(kernels, 1, setup, cache, 1, lines=2000 if len(kernels) > 1 else 12).failed
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
    for k in (k for k in kernels if not k.of_user):
        last = first + k.text.count("\n")
        if any(first <= n <= last for n in lines):
            bad.append(k)
        first = last + 1
    return bad if len(bad) < len(kernels) else []


@dataclass(frozen=True)
class _Made:
    """Results of compiling kernels, by name: Halide's errors, and seconds of compilation."""

    failed: dict[str, CompileError]
    took: dict[str, float]


def _run(
    kernels: Sequence[Kernel],
    count: int,
    setup: Setup,
    cache: Cache,
    jobs: int,
    *,
    lines: int,
    tell: Tell = lambda _: None,
    seconds: float = 0,
) -> _Made:
    """Compile generators and run them.

    Args:
        kernels: the kernels.
        count: translation units that are compiled at once.
        setup: of all of them.
        cache: where the objects go.
        jobs: kernels at once.
        lines: of what the tools say that errors repeat.
        tell: called with how many kernels are compiled.
        seconds: of a processor that Halide may take for one kernel; `_SECONDS` by default.

    Raises:
        CompileError: OCC0403 a translation unit does not compile.
    """
    tools = setup.tools
    with cache.workspace() as folder:
        work = Path(folder)
        (work / "te.h").write_text(native("te.h"))
        (work / "whole.h").write_text(native("whole.h"))
        texts = units(kernels, count)
        for name, text in texts.items():
            (work / f"{name}.cpp").write_text(text)
        tell(f"compiling the generators of {len(kernels)} kernels")
        run_all([_command(name, tools) for name in texts], work, lines=lines)
        (work / "out").mkdir()
        longest = sorted(kernels, key=lambda k: (-len(k.text), k.name))  # last ones that take long leave a core idle
        limits = [str(max(jobs, 1)), str(seconds or _SECONDS)]
        command = [
            str(emitter(tools, cache)),
            "out",
            setup.target,
            *limits,
            *(f"./{n}.so" for n in texts),
            *(k.name for k in longest),
        ]
        problem: CompileError | None = None
        try:
            with counted(work / "out", len(kernels), "compiling kernel", tell):
                run_all([command], work, lines=lines)
        except CompileError as e:
            problem = e
        took = (line.split() for line in (work / "out" / "seconds.txt").read_text().splitlines())
        return _Made(_adopt(kernels, work / "out", cache, problem), {name: float(seconds) for name, seconds in took})


def _command(unit: str, tools: Toolchain) -> list[str]:
    """The command that compiles a translation unit."""
    libraries = () if unit == _OF_USERS else _ALONE
    return [*tools.cxx.command, *_UNIT, *libraries, f"-I{tools.include}", f"{unit}.cpp", "-o", f"{unit}.so"]


def _adopt(kernels: Sequence[Kernel], out: Path, cache: Cache, problem: CompileError | None) -> dict[str, CompileError]:
    failed: dict[str, CompileError] = {}
    for k in kernels:
        made = out / f"{k.name}.o"
        if made.is_file():
            cache.adopt("kernel", k.key, made, ".o")
            continue
        said = problem.diagnostics[0].notes[1:] if problem is not None else ()
        at = next((n for n, line in enumerate(said) if line.startswith(f"{k.name}:")), len(said))
        about = said[max(at - 6, 0) : at + 4]  # a process that was ended has said why before
        failed[k.name] = error("OCC0403", f"Halide does not compile the kernel `{k.name}`", notes=about)
    return failed


def sources(kernels: Sequence[Kernel], setup: Setup) -> dict[str, bytes]:
    """The files of `src/`, which rebuild the library by make or CMake."""
    names = " ".join(k.name for k in kernels)
    known = {"@TARGET@": setup.target, "@KERNELS@": names, "@SANITIZE@": " ".join(setup.tools.sanitizer_flags)}
    build = {
        name: re.sub("@[A-Z]+@", lambda found: known.get(found[0], found[0]), native(f"{stem}.in"))
        for name, stem in (("Makefile", "Makefile"), ("CMakeLists.txt", "CMakeLists"))
    }
    texts = {
        **front_end(),
        **{name: native(name) for name in ("emit.cpp", "entry.py")},
        "runtime.cpp": runtime_source(),
        **{f"{name}.cpp": text for name, text in units(kernels).items()},
        **build,
    }
    if any(k.of_user for k in kernels):
        texts["whole.h"] = native("whole.h")
    return {name: text.encode() for name, text in texts.items()}
