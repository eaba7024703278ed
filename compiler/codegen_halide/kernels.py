"""Kernels as Halide generators: their text, their keys in the cache, their translation units."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from occ.compiler.cache.cache import digest
from occ.compiler.codegen_halide.emit import generator, source
from occ.compiler.codegen_halide.front_end import front_end
from occ.compiler.codegen_halide.programs import FLAGS, native, runtime_source
from occ.compiler.codegen_halide.toolchain import Toolchain
from occ.compiler.ir.attribute_keys import Identity
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.passes.lower.schedule import plain
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

UNITS = 2  # translation units of `src/`, which make compiles at once
_SHORT = 8_000  # bytes of generators in a unit: g++ takes 55 ms to start and 5 ms per 1,000 bytes (g++ 12, AMD EPYC)
OF_USERS = "user_kernels"  # the translation unit of users' bodies
UNIT_FLAGS = (*FLAGS, "-shared", "-fPIC")


@dataclass(frozen=True)
class Kernel:
    """A kernel on its way to an object file.

    Attributes:
        name: its symbol, derived from its content: equal names mean equal kernels.
        text: the C++ class of its generator.
        key: of the object in the cache.
        of_user: whether a user wrote its body, using all of Halide.
        simpler: the same with the fallback schedule, in case Halide does not finish with this one.
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
        return cls(tools, target, digest([tools.identity, target, *UNIT_FLAGS, *texts]))

    def kernel(self, f: TeFunc, nodes: Sequence[str] = ()) -> Kernel:
        """The kernel of a te function; `nodes` are the ONNX nodes that it computes, for the comments."""
        text = _text(Identity(f), tuple(nodes), {"f16c", "arm_fp16"}.isdisjoint(self.target.split("-")))
        key = digest(["kernel", self.identity, text if f.halide else _without_comments(text)])
        simpler = None if f.halide else lambda: replace(self.kernel(plain(f, Machine()), nodes), simpler=None)
        return Kernel(f.name, text, key, bool(f.halide), simpler)


@lru_cache(maxsize=512)  # a build emits what it has looked up in the cache
def _text(f: Identity[TeFunc], nodes: Sequence[str], halves_in_f32: bool) -> str:
    return generator(f.value, nodes, halves_in_f32=halves_in_f32)


def units(kernels: Sequence[Kernel], count: int = UNITS) -> dict[str, str]:
    """Translation units by name: kernels distributed so that all have about the same amount of text.

    Longest first, each to the smallest unit; users' kernels are one unit. Short texts are a single unit.
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
        made[OF_USERS] = source(own, whole=True)
    return made


def _without_comments(text: str) -> str:
    """The text of a compiler-made generator: models that differ only in node names share kernels.

    In a user's body, two slashes may be inside a string.
    """
    return re.sub(r"\s*//[^\n]*", "", text)


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
