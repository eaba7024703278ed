"""The registry of targets, which are loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

from occ.compiler.diagnostics import closest, error
from occ.compiler.entry_points import installed, load_point
from occ.compiler.targets.target import Target

GROUP = "occ.targets"
# The targets of occ, as a package would name its own in pyproject.toml.
OWN = {
    name: EntryPoint(name, f"occ.compiler.{place}", GROUP)
    for name, place in {
        "cpu": "codegen_halide.target:CPU",
        "cpu-jit": "codegen_llvm.target:CPU_JIT",
        "interp": "codegen_interp.target:INTERP",
        "ascend310": "codegen_cann.target:ASCEND310",
        "ascend310b": "codegen_cann.target:ASCEND310B",
        "ascend310p": "codegen_cann.target:ASCEND310P",
        "ascend910": "codegen_cann.target:ASCEND910",
        "ascend910b": "codegen_cann.target:ASCEND910B",
        "ascend910_93": "codegen_cann.target:ASCEND910_93",
    }.items()
}
# Names of chips without a target, although others have similar names.
_ABSENT: dict[str, str] = {
    **dict.fromkeys(
        ("ascend910_95", "ascend950"),
        "occ has no target for this generation, whose kernels differ from the 910B's",
    ),
    "ascend910c": "the chip of Atlas A3 is `ascend910_93`",
    **dict.fromkeys(
        ("gpu", "cuda", "rocm", "vulkan", "metal", "opencl", "webgpu", "tensorrt"),
        "occ compiles for processors (`cpu`, `cpu-jit`) and Ascend NPUs, not for GPUs",
    ),
}


def get_target(name: str) -> Target:
    """The target with a name.

    Raises:
        CompileError: OCC0303 there is none; OCC0610 a package has it, and it cannot be used.
    """
    if not isinstance(name, str):
        raise error("OCC0303", f"the name of a target is a text, not {type(name).__name__}", help="such as `cpu`")
    point = OWN.get(name) or installed(GROUP).get(name)
    if point is None:
        known = [*OWN, *installed(GROUP)]
        listed = f"targets: {', '.join(known)}"
        raise error("OCC0303", f"unknown target `{name}`", help=_ABSENT.get(name) or closest(name, known) or listed)
    return _load(point)


def target_for(name: str, given: Mapping[str, str]) -> tuple[Target, Any]:
    """The target that compiles with these options, and the options as it reads them.

    It is the named one; or, if the least time to a first result is wanted, the one that generates code sooner, if that
    has all options that are given and supports the machine.

    Raises:
        CompileError: as `get_target`; OCC0603 the target does not take the options.
    """
    target = get_target(name)
    options = target.options.read(name, given)
    if options.quick and target.sooner:
        sooner = get_target(target.sooner)
        if given.keys() <= sooner.options.table.keys():
            read = sooner.options.read(sooner.name, given)
            if sooner.supports(read):
                return sooner, read
    return target, options


def on_device(target: str) -> bool:
    """Whether a target is for devices: its builds are for one exact chip.

    Raises:
        CompileError: as `get_target`.
    """
    return "soc_version" in get_target(target).options.table


def all_targets() -> list[Target]:
    """The targets of occ, and those of installed packages.

    Raises:
        CompileError: OCC0610 a package has one that cannot be used, or with a name that occ uses.
    """
    for point in installed(GROUP).values():
        if point.name in OWN:
            owner = point.dist.name if point.dist else point.value
            message = f"the package `{owner}` installs a target `{point.name}`, which occ has"
            raise error("OCC0610", message, help="rename it")
    return [_load(point) for point in (*OWN.values(), *installed(GROUP).values())]


def _load(point: EntryPoint) -> Target:
    """The target of an entry point.

    Raises:
        CompileError: OCC0610 it cannot be imported, is not a target, or has another name.
    """
    target = load_point(point)
    if not isinstance(target, Target) or point.name != target.name:
        owner = point.dist.name if point.dist else point.value
        message = f"`{point.name}` of the package `{owner}` is not a target of that name"
        raise error("OCC0610", message, help="docs/guide-target.md shows how targets are made")
    return target
