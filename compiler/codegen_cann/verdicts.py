"""Which ops a device can run, and why it cannot run the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from occ.compiler.codegen_cann.graph.graph import Graph
from occ.compiler.codegen_cann.graph.installed import kernels_for
from occ.compiler.codegen_cann.graph.kernels import KernelTable
from occ.compiler.codegen_cann.mapping.chip import CHIPS, Chip
from occ.compiler.codegen_cann.mapping.emitter import Unsupported
from occ.compiler.codegen_cann.mapping.merge import merged
from occ.compiler.codegen_cann.mapping.table import trial, verdict
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.codegen_cann.parts.data_sizes import MOST, at_sizes, defined_sizes, sets_of, used
from occ.compiler.codegen_cann.parts.partition import is_free
from occ.compiler.diagnostics import CompileError, Diagnostic, error, shorten
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.printer import op_text
from occ.compiler.ir.types import TensorType

DEVICE_OPERATOR = "device_operator"
At = Callable[..., Module]  # `Build.at` of a compilation


def verdicts(m: Module, options: AscendOptions) -> dict[Op, str]:
    """Why the device does not support each op of the main function; empty if it does.

    If the device runs a model as one part, an op may have data-dependent extents, if the device computes them.
    """
    precision, chip = options.precision, chip_for(options)
    unsized = replace(chip, dynamic=True)
    found: dict[Op, str] = {}
    decided: set[str] = set()  # sizes that the device computes
    lost: dict[str, str] = {}  # sizes that the CPU computes, and by which operator
    for op in (o for o in m.main.body.body if not is_free(o)):
        names, own = used(op), defined_sizes(op)
        if outside := names & lost.keys():
            found[op] = f"its extents depend on `{lost[min(outside)]}`, which runs on the CPU"
        elif names and decides(options) and names <= (decided | own if op.name in MOST else decided):
            found[op] = _sized_verdict(op, sets_of(m, [op], names), precision, m, unsized)
        else:
            found[op] = verdict(op, precision, m, chip)
        if found[op]:
            lost |= dict.fromkeys(own, op.name)
        else:
            decided |= own
    return found


def decides(options: AscendOptions) -> bool:
    """Whether parts may have data-dependent sizes: not with gears, nor with parts that are cut."""
    return not options.gears and not options.npu_mem_limit and options.enable_cann_graph


def _sized_verdict(op: Op, sizes: Sequence[Mapping[str, int]], precision: str, m: Module, chip: Chip) -> str:
    """Why the device does not support an op with data-dependent extents."""
    graphs: list[Graph] = []
    try:
        for each in sizes:
            with at_sizes(m, each):
                graphs.append(trial(op, precision, m, chip, list(each.values())))
        run_by_a_unit(merged(graphs, bounded=False), chip, precision, op.loc.nodes)
    except Unsupported as reason:
        return str(reason)
    except CompileError as e:
        return e.diagnostics[0].message
    return ""


def kernels_of(options: AscendOptions) -> KernelTable:
    """Kernel tables of the chip: the installed toolkit's, otherwise the built-in ones."""
    return kernels_for(options.target.removeprefix("ascend"))


def chip_for(options: AscendOptions) -> Chip:
    """The limits of the chip for the graphs of a build.

    Kernels whose support depends on sizes cannot be used with several sizes.
    """
    chip = CHIPS[options.target]
    sized = (options.gears or options.dynamic_ranges) and chip.attention == "PromptFlashAttention"
    return replace(
        chip,
        ascend_quant=chip.ascend_quant and options.qdq == "integer",
        attention="" if sized else chip.attention,
        table=kernels_of(options),
        dynamic=bool(options.dynamic_ranges),
    )


def refusals(m: Module, found: Mapping[Op, str], target: str, source: str) -> list[Diagnostic]:
    """A diagnostic for every op that the device does not support."""
    made: list[Diagnostic] = []
    for op, reason in found.items():
        if reason:
            where = f"{source}: {op.loc}"
            text = f"`{target}` cannot take `{_shown(op)}`: {reason}"
            made.append(
                Diagnostic("OCC0301", text, where, op_text(op), (), ("it runs on the CPU unless cpu_fallback=off",))
            )
    return made


def _shown(op: Op) -> str:
    """The name of an operator as the model has it."""
    return shorten(str(op.attrs["type"])) if op.name == DEVICE_OPERATOR else op.name


def check_extents(m: Module, target: str) -> None:
    for arg in m.main.args:
        if isinstance(arg.type, TensorType) and not arg.type.is_static:
            raise CompileError(
                [
                    Diagnostic(
                        "OCC0305",
                        f"`{target}` needs constant extents, the input `{arg.name}` is {arg.type}",
                        helps=(f"fix them: `--shape {arg.name}=...`, or `--dim NAME=...` for each symbolic dim",),
                    )
                ]
            )


def run_by_a_unit(
    graph: Graph, chip: Chip, precision: str, where: Sequence[str] = (), *, fixed: bool = False, remedy: str = ""
) -> None:
    """Check that the chip has a kernel for each node of a merged graph.

    Raises:
        CompileError: OCC0305 it has none.
    """
    found = chip.table and chip.table.lacking(graph, precision, fixed=fixed)
    if found:
        node, lack = found
        name = shorten(", ".join(where or node.source) or node.name)
        raise error("OCC0305", f"the chip has {lack}", where=name, help=remedy)
