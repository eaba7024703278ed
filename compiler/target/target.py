"""Targets: what code can be made for, with the facts about each that passes and codegens ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from occ.compiler.diagnostics import error
from occ.compiler.target import ascend
from occ.compiler.target.entry_points import installed, load_point
from occ.compiler.target.option import Option

GROUP = "occ.targets"


def _nothing(_module: Any, _options: Mapping[str, Any]) -> Any:
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
        options: `-C` options.
        dtypes: element types that its kernels compute with; empty for all.
        check: refuses combinations of options.
        pipeline: of a target that a package adds: the passes that lead to each stage.
        generate: of such a target: makes the artifact of a module at its last stage, with the options.
        text: of such a target: a module at its last stage as text, for the dump that `texts` names.
    """

    name: str
    doc: str
    family: str
    codegen: str = ""
    texts: tuple[str, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    dtypes: frozenset[str] = frozenset()
    check: Callable[[str, Mapping[str, Any]], None] | None = None
    pipeline: Callable[[], Mapping[str, tuple[Any, ...]]] | None = None
    generate: Callable[[Any, Mapping[str, Any]], Any] = _nothing
    text: Callable[[Any], str] | None = None

    def check_options(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Options with defaults filled in.

        Raises:
            CompileError: OCC0603 an unknown key or a bad value; the message lists the right ones.
        """
        known = ", ".join(f"`{k}`" for k in self.options) or "none"
        for key in given:
            if key not in self.options:
                raise error("OCC0603", f"target `{self.name}` has no option `{key}`", help=f"options: {known}")
        made = {key: _convert(key, option, given.get(key)) for key, option in self.options.items()}
        if self.check is not None:
            self.check(self.name, made)
        return made


def _convert(key: str, option: Option, value: Any) -> Any:
    if value is None:
        return option.default
    if option.choices and value not in option.choices:
        choices = ", ".join(map(str, option.choices))
        raise error("OCC0603", f"option `{key}` cannot be `{value}`", help=f"one of: {choices}")
    if isinstance(option.default, bool):
        return value in (True, "true", "on", "1")
    if isinstance(option.default, int) and not isinstance(value, int):
        try:
            return int(value)
        except ValueError:
            raise error("OCC0603", f"option `{key}` takes a number, not `{value}`") from None
    return value


_KERNEL_TYPES = frozenset(["f64", "f32", "f16", "bf16", "bool", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"])
_LATE = {
    "late": Option("on", ("on", "off"), "`off` refuses nodes that would have to be compiled at run time"),
}
_QDQ = {
    "qdq": Option(
        "integer",
        ("integer", "float"),
        "operators between DequantizeLinear and QuantizeLinear: on their integers, as onnxruntime does, or in f32",
    ),
}
_HALIDE_OPTIONS = {
    **_LATE,
    **_QDQ,
    "halide.target": Option("host", doc="Halide target triple; anything but `host` gives objects for another machine"),
    "schedule": Option(
        "rules", ("rules", "fallback"), "`fallback` gives all kernels plain loops: the baseline of measurements"
    ),
    "precision": Option(
        "f32",
        ("f32", "bf16", "int8"),
        "of the operands of products with constant f32 weights: `bf16` is up to twice as fast, and off by 0.2 %; `int8` is up to "
        "three times as fast, and off by 1 %",
    ),
    "winograd": Option(
        "auto",
        ("auto", "off"),
        "3x3 convolutions by Winograd's method: up to 3 times as fast, weights 4 times as large",
    ),
    "strassen": Option(
        "off",
        ("off", "on"),
        "large products with constant matrices by Strassen's method: a few percent faster, weights 1.75 times as large",
    ),
}
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
            _HALIDE_OPTIONS,
            _KERNEL_TYPES,
        ),
        Target(
            "cpu-jit",
            "native CPU code through LLVM; needs no toolchain",
            "native",
            "codegen_llvm",
            ("llvm",),
            {**_LATE, **_QDQ},
            _KERNEL_TYPES,
        ),
        Target("interp", "the numpy oracle: slow, needs nothing", "interp", options=_QDQ),
        *(
            Target(name, doc, "ascend", "codegen_cann", ("ge", "atc"), ascend.options(name), check=ascend.check)
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
