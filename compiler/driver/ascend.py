"""What the compilation for an Ascend target asks of the driver: CPU parts, and the model at the extents of a gear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from occ.compiler.codegen_cann import build as cann
from occ.compiler.diagnostics import CompileError, Diagnostic, error
from occ.compiler.frontend.signature import Overrides
from occ.compiler.ir.module import Module
from occ.runtime.artifact import Artifact

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation


def check(c: Compilation, m: Module) -> list[Diagnostic]:
    """What the CPU would run of a module at the last stage of the target.

    Raises:
        CompileError: as `codegen_cann.build.check`.
    """
    return cann.check(m, c.options, c.context.source, lambda dims: at_gear(c, dims))


def build(c: Compilation, m: Module) -> Artifact:
    """The artifact of a module at the last stage of the target.

    Raises:
        CompileError: as `codegen_cann.build.build`.
    """

    def island(module: Module) -> Artifact:
        return compile_island(c, module)

    return cann.build(m, c.options, island, c.context.source, lambda dims: at_gear(c, dims))


def compile_island(c: Compilation, m: Module) -> Artifact:
    """What the CPU takes of a model; without a C++ compiler, through LLVM.

    Raises:
        CompileError: it does not compile.
    """
    settings = replace(c.settings, target=c.options.cpu_fallback, options={}, save_stages=False)
    try:
        return type(c)(m, settings).artifact()
    except CompileError as e:
        if settings.target != "cpu" or not e.diagnostics[0].code.startswith("OCC040"):
            raise
        return type(c)(m, replace(settings, target="cpu-jit")).artifact()


def at_gear(c: Compilation, dims: Mapping[str, int]) -> Module:
    """The module at the last stage, with values for its symbols.

    Raises:
        CompileError: OCC0603 the model was given as a module, which cannot be read again.
    """
    if isinstance(c.given, Module):
        raise error("OCC0603", "gears need the model itself, not a text of a later stage", help="build the .onnx file")
    labels = {s.symbol.name: s.label for s in c.module.symbols.values()}
    given = c.settings.overrides
    values = {labels.get(name, name): value for name, value in dims.items()}
    settings = replace(c.settings, overrides=Overrides(given.shapes, {**given.dims, **values}), save_stages=False)
    other = type(c)(c.given, settings)
    return other.advance(other.last_stage)
