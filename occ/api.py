"""The functions of the `occ` package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from occ.arguments import checked_dims, checked_options, checked_plans, checked_shapes, names_of
from occ.background import check_buildable
from occ.compiler.diagnostics import error
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.outputs import check_out
from occ.compiler.driver.sessions import compile_model, compile_soon
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source, in_onnx
from occ.compiler.frontend.signature import Bounds, Overrides
from occ.compiler.frontend.torch_program import ExportedProgram
from occ.compiler.targets.default import DEFAULT
from occ.compiler.targets.registry import all_targets
from occ.compiler.targets.target import Target
from occ.runtime.artifact import Artifact, check_name
from occ.runtime.dataclass import dataclass
from occ.runtime.session import Session
from occ.specialising import in_background

Shapes = Mapping[str, Sequence[int | str]]
Specialise = Sequence[Mapping[str, Sequence[int | str] | int]]
Dims = Mapping[str, int | str]  # values, or bounds such as "32..1280:32"


def settings_of(
    target: str,
    shapes: Shapes | None,
    dims: Dims | None,
    options: Mapping[str, Any] | None,
    outputs: Sequence[str] = (),
    specialise: Specialise = (),
    **more: Any,
) -> Settings:
    """Settings from the arguments of the functions of `occ`; `more` are fields of `Settings`.

    Raises:
        CompileError: OCC0205 a size is none, or bounds of a dim; OCC0603 an argument is of another kind.
    """
    sizes = checked_dims(dims)
    more |= {"rules": names_of(more.get("rules", ()))}
    fixed = {n: d for n, d in sizes.items() if not isinstance(d, str)}
    try:
        bounds = {n: Bounds.read(d) for n, d in sizes.items() if isinstance(d, str)}
    except ValueError as e:
        raise error("OCC0205", f"dims: {e}") from None
    overrides = Overrides(checked_shapes(shapes), fixed, names_of(outputs), bounds)
    special = [_with(overrides, sizes) for sizes in checked_plans(specialise)]
    return Settings(target, overrides, checked_options(options), special=special, **more)


def _with(overrides: Overrides, sizes: Mapping[str, Sequence[int | str] | int]) -> Overrides:
    """Overrides with further extents of inputs, and values of dims."""
    dims = {n: v for n, v in sizes.items() if isinstance(v, int)}
    shapes = {n: v for n, v in sizes.items() if not isinstance(v, int)}
    return replace(overrides, shapes={**overrides.shapes, **shapes}, dims={**overrides.dims, **dims})


def compile(  # noqa: A001 - the name that users expect
    model: Source | ExportedProgram,
    target: str = DEFAULT,
    *,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
    threads: int | None = None,
    outputs: Sequence[str] = (),
    specialise: Specialise | Literal["background"] = (),
) -> Session:
    """Compile a model for this machine.

    Args:
        model: path of an `.onnx` file or `.occ` text, the bytes or text of one, or an `onnx.ModelProto`; or a program
            of `torch.export`, or the path of its `.pt2` file, which torch's own exporter converts to ONNX.
        target: `cpu` (Halide, needs a C++ compiler), `cpu-jit` (LLVM, needs none) or `interp` (numpy).
        shapes: extents to fix, by input name; a string keeps an extent symbolic.
        dims: values of symbolic dims to fix, by their name in the model; a text such as "32..1280:32" sets bounds
            instead: multiples of 32 from 32 to 1280, which the code may rely on and every run checks.
        options: options of the target, as `-C key=value`.
        rules: rewrite and fusion rules, passes and operators: objects, modules that define them, or paths of rule
            files.
        threads: of one run; OCC_NUM_THREADS or all processors if None.
        outputs: values or nodes of the main graph that become outputs in addition to the declared ones.
        specialise: sizes with a plan of their own in addition to the general plan, such as `[{"x": (1, 3, 320, 320)},
            {"batch": 8}]`: extents by input, or values by dim. Inputs of such sizes use it; equal weights are shared.
            With "background" nothing blocks: if kernels are not in the build cache, `cpu-jit` runs the model until a
            lowest-priority process has built it; and a shape seen 32 times gets a plan, also built in the background,
            for at most 8 shapes. A plan takes over if it is faster on subsequent runs, and a failed build changes
            nothing. Results may differ in the last digits, as sums are taken in another order.

    Returns:
        The model: `m.run({"x": x})` gives outputs by name, `m(x)` by position.

    Raises:
        CompileError: the model cannot be compiled; `diagnostics` has every problem.
    """
    if isinstance(specialise, str):
        if specialise != "background":
            raise error("OCC0603", f"specialise is {specialise!r}", help='it takes sizes, or "background"')
        settings = settings_of(target, shapes, dims, options, outputs, rules=rules)
        read = in_onnx(model)
        check_buildable(read, settings)
        return in_background(read, settings, compile_soon(read, settings, threads))
    return compile_model(model, settings_of(target, shapes, dims, options, outputs, specialise, rules=rules), threads)


def build(
    model: Source | ExportedProgram,
    target: str = DEFAULT,
    out: str | os.PathLike[str] | None = None,
    *,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
    folder: bool = False,
    outputs: Sequence[str] = (),
    specialise: Specialise = (),
) -> Artifact:
    """Build an artifact, and write it to `out` if given; other arguments as for `compile`.

    Raises:
        CompileError: the model cannot be compiled; OCC0605 `out` is the model itself, or nothing to be replaced.
        RunError: OCC0605 `out` has the name of a model or a library.
        OSError: `out` cannot be written.
    """
    place = None if out is None else check_out(Path(out), [model], folder=folder)
    if place is not None:
        check_name(place)
    settings = settings_of(target, shapes, dims, options, outputs, specialise, rules=rules, cases=True)
    compilation = Compilation(model, settings)
    artifact = compilation.artifact()
    if place is not None:
        artifact.save(check_out(place, compilation.module.files, folder=folder), folder=folder)
    return artifact


def targets() -> list[Target]:
    """The targets that models can be compiled for."""
    return all_targets()


@dataclass(frozen=True)
class Capability:
    """How well a target supports a model.

    Attributes:
        ok: whether all of it can be compiled.
        reasons: one text for each unsupported feature.
        on_cpu: one text for each node that an Ascend target leaves to the CPU.
    """

    ok: bool
    reasons: tuple[str, ...]
    on_cpu: tuple[str, ...] = ()


def capability(model: Source | ExportedProgram, target: str = DEFAULT) -> Capability:
    """Whether a target supports a model, determined without generating code."""
    from occ.compiler.diagnostics import CompileError

    try:
        compilation = Compilation(model, settings_of(target, None, None, None))
        warnings = compilation.check()
    except CompileError as e:
        return Capability(False, tuple(d.text() for d in e.diagnostics))
    return Capability(True, (), tuple(d.text() for d in warnings))
