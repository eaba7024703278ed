"""The stages of a `block_matmul`, which no normaliser changes."""

from __future__ import annotations

from occ.compiler.ir.dtype import I8, I16, I32, U8
from occ.compiler.ir.te.expr import Axis, Binary, Cast, Index, Load, Reduce
from occ.compiler.ir.te.function import TeFunc, TeStage, loads
from occ.compiler.ir.te.walks import walk
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Stages:
    """The stages of a `block_matmul`.

    Attributes:
        codes: the codes of a block, one per byte; None if the weight is stored so.
        total: the contribution of the codes' centre, per row and block, if codes are unsigned or there are zero points;
            `whole` is the same in f32, if there are zero points.
        dot: products of a block in i32; `pairs` holds the sums of even and odd pairs of elements before it, on
            processors that add two products per lane.
        acc: sums of blocks.
        root: the stage in memory that reads those, and `between` the inlined ones through which it does.
        left: the parameter with the codes of the activations.
        steps: the parameter with their scales.
    """

    codes: TeStage | None
    total: TeStage | None
    whole: TeStage | None
    pairs: TeStage | None
    dot: TeStage
    acc: TeStage
    root: TeStage
    between: tuple[TeStage, ...]
    left: str
    steps: str

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The axes of `acc` that only activations have."""
        return self.acc.axes[:-2]

    @property
    def made(self) -> tuple[TeStage, ...]:
        return tuple(
            s
            for s in (self.codes, self.total, self.whole, self.pairs, self.dot, self.acc, *self.between)
            if s is not None
        )


def block_product_stages(f: TeFunc) -> Stages | None:
    """The stages of a function that is a `block_matmul` followed by elementwise work, or None."""
    stages = {s.name: s for s in f.stages if isinstance(s, TeStage)}
    root = f.stages[-1]
    product = next((s for s in stages.values() if _is_product_of_codes(s)), None)
    if product is None or not isinstance(root, TeStage) or len(f.results) != 1 or len(stages) != len(f.stages):
        return None
    reader = next((s for s in stages.values() if product.name in _read(s)), None)
    in_pairs = reader is not None and isinstance(reader.expr, Reduce) and reader.expr.dtype == I32
    dot = reader if in_pairs and reader is not None else product
    acc = next((s for s in stages.values() if isinstance(s.expr, Reduce) and dot.name in _read(s)), None)
    if acc is None or len(acc.axes) < 2:
        return None
    first, second = (n for n in walk(product.expr) if isinstance(n, Load) and n.source != product.name)
    code, left = (second, first) if second.dtype == U8 or second.source in stages else (first, second)
    total = next((s for s in stages.values() if s is not product and left.source in _read(s)), None)
    panel = Index(acc.axes[-2].name)
    steps = next((n.source for n in loads(acc.expr) if n.source not in stages and panel not in n.index), None)
    if steps is None:
        return None
    whole = next((s for s in stages.values() if total and s is not acc and total.name in _read(s)), None)
    named = {s.name for s in (total, whole, product, dot, acc) if s is not None} | {code.source}
    between = tuple(s for s in stages.values() if s is not root and s.name not in named)
    if len(root.axes) != len(acc.axes) - 1 or any(isinstance(s.expr, Reduce) for s in (*between, root)):
        return None
    pairs = product if in_pairs else None
    return Stages(stages.get(code.source), total, whole, pairs, dot, acc, root, between, left.source, steps)


def _read(s: TeStage) -> set[str]:
    return {n.source for n in loads(s.expr)}


def _is_product_of_codes(s: TeStage) -> bool:
    """Whether a stage sums products of unsigned by signed bytes, or of signed ones, in i32, or in i16."""
    r = s.expr
    if not isinstance(r, Reduce) or r.dtype not in (I16, I32) or not isinstance(r.body, Binary) or r.body.op != "mul":
        return False
    sides = (r.body.lhs, r.body.rhs)
    read = [n.arg.dtype for n in sides if isinstance(n, Cast) and isinstance(n.arg, Load)]
    return len(read) == 2 and set(read) in ({U8, I8}, {I8})
