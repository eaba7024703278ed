"""The stable API for user-defined rules, passes, operators, kernels and targets.

A package that extends occ imports from here and from `occ`. Everything else in `occ.compiler` may move between
releases.

- rules: `fusion`, `rewrite`
- schedule rules: `schedule_rule`, `Declined`, `StageSchedule`, `Machine`; in them `walk`, `loads`, `reduce_axes`
- operators and kernels: `operator`, `c_kernel`, `halide_kernel`, `te_kernel`; in bodies `where`, `literal`, `cast`,
  `minimum`, ...; `Layout` and `in_panels` for the layouts of weights
- passes: `Pass`, `Context`, `Module`, `Op`, `Value`, `Rewriter`
- targets: `Target`, `Build`, `Generated`, `Text`, `Options` and `option`, `pipelines` (those of occ), `LowerTe`,
  `PlanMemory`, `manifest`, `stored_weights`, `Artifact`, `LIBRARY`,
  `entry_object` (the compiled plan, to be linked with the kernels), `link` (a linker for those who have none)
- generators: the nodes of tensor expressions (`Binary`, `Load`, ...), `TeFunc` and its stages, sizes (`Sym`, `rebuild`)
- messages: `error`, `CompileError`; `extensions` loads rule files and reports their errors
"""

from __future__ import annotations

from occ.compiler.diagnostics import CompileError, error
from occ.compiler.driver import pipelines
from occ.compiler.driver.plugins import extensions
from occ.compiler.frontend.kernels import te_kernel
from occ.compiler.ir.dim import Dim, Sym, rebuild
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.layout import Layout, in_panels
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.operator.custom import c_kernel, halide_kernel, operator
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.te.expr import (
    Axis,
    Binary,
    Bitcast,
    Call,
    Carried,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    call,
    cast,
    clamp,
    equal,
    literal,
    maximum,
    minimum,
    not_equal,
    where,
)
from occ.compiler.ir.te.function import Scatter, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.scatter_rows import place_before, running
from occ.compiler.ir.te.stage_schedule import StageSchedule
from occ.compiler.ir.te.walks import walk
from occ.compiler.native_entry.build import entry_object
from occ.compiler.objects.elf import link
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.lower.lower_te import LowerTe
from occ.compiler.passes.lower.plan_memory import PlanMemory
from occ.compiler.passes.rules.declare import fusion, rewrite
from occ.compiler.passes.rules.schedule_rule import Declined, schedule_rule
from occ.compiler.plan.plan import manifest, stored_weights
from occ.compiler.targets.machine import Machine
from occ.compiler.targets.option import Options, option
from occ.compiler.targets.target import Build, Generated, Target, Text
from occ.runtime.artifact import Artifact
from occ.runtime.members import LIBRARY

__all__ = [
    "LIBRARY",
    "Artifact",
    "Axis",
    "Binary",
    "Bitcast",
    "Build",
    "Call",
    "Carried",
    "Cast",
    "CompileError",
    "Const",
    "Context",
    "DType",
    "Declined",
    "Dim",
    "Expr",
    "Generated",
    "Index",
    "Layout",
    "Load",
    "LowerTe",
    "Machine",
    "Module",
    "Op",
    "Options",
    "Pass",
    "PlanMemory",
    "Reduce",
    "Rewriter",
    "Scatter",
    "Select",
    "Size",
    "StageSchedule",
    "Sym",
    "Target",
    "TeFunc",
    "TeStage",
    "Text",
    "Value",
    "c_kernel",
    "call",
    "cast",
    "clamp",
    "entry_object",
    "equal",
    "error",
    "extensions",
    "fusion",
    "halide_kernel",
    "in_panels",
    "link",
    "literal",
    "loads",
    "manifest",
    "maximum",
    "minimum",
    "not_equal",
    "operator",
    "option",
    "pipelines",
    "place_before",
    "rebuild",
    "reduce_axes",
    "rewrite",
    "running",
    "schedule_rule",
    "stored_weights",
    "te_kernel",
    "walk",
    "where",
]
