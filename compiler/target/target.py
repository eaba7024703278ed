"""Targets: what code can be made for, with the facts about each that passes and codegens ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from occ.compiler.diagnostics import error
from occ.compiler.target.ascend import AscendOptions
from occ.compiler.target.entry_points import installed, load_point
from occ.compiler.target.native import CpuOptions, InterpOptions, JitOptions
from occ.compiler.target.option import Options

GROUP = "occ.targets"


def _nothing(_module: Any, _options: Any) -> Any:
    """What targets of occ generate here: they have their place in the driver."""
    raise NotImplementedError


@dataclass(frozen=True)
class Target:
    """A target.

    Attributes:
        name: as in `-t NAME`.
        doc: one line.
        family: `native` kernels, `interp` or `ascend`.
        codegen: package with the code generator, empty while there is none.
        texts: dumps after `lowered` that are the target's own text.
        options: `-C` options, with their defaults.
        dtypes: element types that its kernels compute with; empty for all.
        pipeline: of a target that a package adds: the passes that lead to each stage.
        generate: of such a target: makes the artifact of a module at its last stage, with the options.
        text: of such a target: a module at its last stage as text, for the dump that `texts` names.
    """

    name: str
    doc: str
    family: str
    codegen: str = ""
    texts: tuple[str, ...] = ()
    options: Options = Options()  # noqa: RUF009 - it is frozen
    dtypes: frozenset[str] = frozenset()
    pipeline: Callable[[Any], Mapping[str, tuple[Any, ...]]] | None = None
    generate: Callable[[Any, Any], Any] = _nothing
    text: Callable[[Any], str] | None = None


_KERNEL_TYPES = frozenset(["f64", "f32", "f16", "bf16", "bool", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"])
_ASCEND = {
    "ascend310": "Ascend 310 (Atlas 200/300 inference)",
    "ascend310p": "Ascend 310P (Atlas 300I/V Pro)",
    "ascend910": "Ascend 910 (A)",
    "ascend910b": "Ascend 910B (B1 to B4)",
}
TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target(
            "cpu",
            "native CPU code through Halide; needs a C++ compiler",
            "native",
            "codegen_halide",
            ("halide",),
            CpuOptions(),
            _KERNEL_TYPES,
        ),
        Target(
            "cpu-jit",
            "native CPU code through LLVM; needs no toolchain",
            "native",
            "codegen_llvm",
            ("llvm",),
            JitOptions(),
            _KERNEL_TYPES,
        ),
        Target("interp", "the numpy oracle: slow, needs nothing", "interp", options=InterpOptions()),
        *(
            Target(name, doc, "ascend", "codegen_cann", ("ge", "atc"), AscendOptions.of(name))
            for name, doc in _ASCEND.items()
        ),
    )
}


def get_target(name: str) -> Target:
    """The target of a name.

    Raises:
        CompileError: OCC0303 there is none; OCC0610 a package has it, and it cannot be used.
    """
    found = TARGETS.get(name)
    if found is None and name in installed(GROUP):
        found = _load(name)
    if found is None:
        raise error("OCC0303", f"unknown target `{name}`", help=f"targets: {', '.join([*TARGETS, *installed(GROUP)])}")
    return found


def all_targets() -> list[Target]:
    """The targets of occ, and those of installed packages.

    Raises:
        CompileError: OCC0610 a package has one that cannot be used.
    """
    return [*TARGETS.values(), *map(_load, installed(GROUP))]


def _load(name: str) -> Target:
    """The target of an entry point.

    Raises:
        CompileError: OCC0610 it cannot be imported, is no target, or its name is another one or taken.
    """
    point = installed(GROUP)[name]
    target = load_point(point)
    owner = point.dist.name if point.dist else point.value
    if name in TARGETS:
        raise error("OCC0610", f"the package `{owner}` installs a target `{name}`, which occ has", help="rename it")
    if not isinstance(target, Target) or target.name != name or target.pipeline is None or target.generate is _nothing:
        message = f"`{name}` of the package `{owner}` is not a target of that name with a pipeline and a generator"
        raise error("OCC0610", message, help="docs/guide-target.md shows how targets are made")
    return target
