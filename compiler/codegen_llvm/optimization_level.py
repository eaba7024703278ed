"""Chooses how much LLVM optimises a kernel: little if it is too small to matter, or at `-O1`."""

from __future__ import annotations

from occ.compiler.ir.dim import product
from occ.compiler.ir.te.function import Scatter, TeFunc, reduce_axes
from occ.compiler.ir.te.walks import walk
from occ.runtime.dataclass import dataclass

# Nodes of evaluated expressions, a microsecond of plain code or less. Of 330 kernels of ONNX's node tests below this,
# none gains more than 0.6 us from LLVM's whole pipeline (Zen 4), which takes four times as long as the reduced one.
SMALL = 4096


@dataclass(frozen=True)
class Effort:
    """How much LLVM optimises a kernel.

    Attributes:
        name: for cache keys.
        level: of LLVM's code generation, from 0 to 3.
        passes: LLVM's passes before it; its whole pipeline if empty.
    """

    name: str
    level: int
    passes: tuple[str, ...] = ()


WHOLE = Effort("whole", 3)
# A third of the time of the whole. Kernels of eight networks take up to 8 % longer for it (Zen 4), and the bits of a
# YOLOv8n are the same: kernels are in vectors and unrolled already, and their loops are as they should be.
QUICK = Effort("quick", 1, ("sroa", "instruction_combine", "simplify_cfg"))
LEAST = Effort("small", 0, ("instruction_combine",))  # ten times as slow where it is not small


def effort_for(f: TeFunc, *, repeated: bool, quick: bool) -> Effort:
    """The effort for a kernel.

    Args:
        f: its te function.
        repeated: whether control flow may run it many times.
        quick: whether the time to a first result matters most.
    """
    if is_small(f) and not repeated:
        return LEAST
    return QUICK if quick else WHOLE


def is_small(f: TeFunc) -> bool:
    """Whether a kernel computes next to nothing, whatever the sizes of its operands.

    Unlike `cost.operations`, this counts index arithmetic and copies: they take time too.
    """
    (stage,) = f.stages
    over = stage.over if isinstance(stage, Scatter) else reduce_axes(stage.expr)
    positions = product(a.extent for a in (*stage.axes, *over))
    nodes = sum(1 for e in stage.exprs for _ in walk(e))
    return isinstance(positions, int) and positions * nodes <= SMALL
