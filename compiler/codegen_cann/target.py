"""The targets `ascend*`: parts of a model as GE graphs, the rest on the CPU.

What makes them is loaded when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.codegen_cann.pipeline import ascend
from occ.compiler.diagnostics import CompileError, Diagnostic
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.targets.option import Options
from occ.compiler.targets.target import Build, Generated, Piece, Target, Text
from occ.runtime.artifact import Artifact

_NO_TOOLS = ("OCC0401", "OCC0402")


def _operators() -> Mapping[str, str]:
    from occ.compiler.codegen_cann.mapping.table import rows

    return dict.fromkeys(rows(), "ge")


def _emitter(name: str) -> Callable[..., Any] | None:
    from occ.compiler.codegen_cann.mapping.table import rows

    return rows().get(name)


def _whole(op: Op, options: Options) -> bool:
    """Whether an operator of GE is a single node with its attributes; if not, a recurrence is unrolled."""
    if op.name not in ("GRU", "LSTM"):
        return True
    from occ.compiler.codegen_cann.mapping.recurrent import fits
    from occ.compiler.codegen_cann.verdicts import kernels_of

    assert isinstance(options, AscendOptions)
    return fits(op, kernels_of(options), options.precision)


def _check(c: Build, m: Module) -> list[Diagnostic]:
    from occ.compiler.codegen_cann.build import check

    return check(m, c.options, c.source, c.at)


def _generate(c: Build, m: Module) -> Generated:
    from occ.compiler.codegen_cann.build import build

    return Generated(build(m, c.options, lambda part: _cpu_subgraph(c, part), c.source, c.at))


def _cpu_subgraph(c: Build, made: Callable[[], Module]) -> Artifact:
    """The compiled CPU subgraph of a model; through LLVM without a C++ compiler or Halide.

    Args:
        made: creates the module, which a compilation consumes.

    Raises:
        CompileError: it does not compile.
    """
    target = c.options.cpu_fallback
    try:
        return c.artifact_for(target, made())
    except CompileError as e:
        if target != "cpu" or e.diagnostics[0].code not in _NO_TOOLS:
            raise
        return c.artifact_for("cpu-jit", made())


def _graphs(c: Build, m: Module, form: str) -> str | Sequence[Piece]:
    from occ.compiler.codegen_cann.dump import graphs

    return graphs(c, m, form)


def _commands(c: Build, m: Module, form: str) -> str:
    from occ.compiler.codegen_cann.dump import commands

    return commands(c, m, form)


def _ascend(name: str, doc: str) -> Target:
    return Target(
        name=name,
        doc=doc,
        pipeline=ascend,
        generate=_generate,
        options=AscendOptions.of(name),
        texts={"ge": Text(_graphs, ("text", "json", "onnx", "cpp")), "atc": Text(_commands, ("text", "json"))},
        operators=_operators,
        emitter=_emitter,
        check=_check,
        whole=_whole,
    )


ASCEND310 = _ascend("ascend310", "Ascend 310 (Atlas 200/300 inference)")
ASCEND310B = _ascend("ascend310b", "Ascend 310B (B1 to B4: Atlas 200I/500 A2, OrangePi AIpro)")
ASCEND310P = _ascend("ascend310p", "Ascend 310P (Atlas 300I/V Pro)")
ASCEND910 = _ascend("ascend910", "Ascend 910 (A)")
ASCEND910B = _ascend("ascend910b", "Ascend 910B (B1 to B4)")
ASCEND910_93 = _ascend("ascend910_93", "Ascend 910_93 (Atlas A3), with the kernels of the 910B")
