"""Chooses LLVM's optimisation level: low for kernels too small to matter."""

from __future__ import annotations

from occ.compiler.ir.dim import product
from occ.compiler.ir.te.function import Scatter, TeFunc, reduce_axes
from occ.compiler.ir.te.walks import walk

# Nodes of evaluated expressions, a microsecond of plain code or less. Of 330 kernels of ONNX's node tests below this,
# none gains more than 0.6 us from LLVM's whole pipeline (Zen 4), which takes four times as long as the reduced one.
SMALL = 4096


def is_small(f: TeFunc) -> bool:
    """Whether a kernel computes next to nothing, whatever the sizes of its operands.

    Unlike `cost.operations`, this counts index arithmetic and copies: they take time too.
    """
    (stage,) = f.stages
    over = stage.over if isinstance(stage, Scatter) else reduce_axes(stage.expr)
    positions = product(a.extent for a in (*stage.axes, *over))
    nodes = sum(1 for e in stage.exprs for _ in walk(e))
    return isinstance(positions, int) and positions * nodes <= SMALL
