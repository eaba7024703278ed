"""The stages of a compilation: the invariants of a module at each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from occ.compiler.ir.liveness import data_symbols, is_live
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.printer import op_text
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.verify import problems
from occ.compiler.ir.verify_plan import plan_problems
from occ.runtime.dataclass import dataclass

Checker = Callable[[Module], Iterator[str]]
LOWERED_OPS = frozenset({"alloc", "kernel", "view", "host", "foreign", "yield"})
_DOES_NOTHING = frozenset({"Identity", "Constant"})


@dataclass(frozen=True)
class Stage:
    """A stage of compilation: a name, and the invariants of a module there.

    Attributes:
        name: as in `--stage NAME`.
        doc: invariants of a module at this stage.
        extra: checks beyond well-formedness.
        typed: whether every value has a type.
    """

    name: str
    doc: str
    extra: Checker | None = None
    typed: bool = True

    def check(self, m: Module) -> Iterator[str]:
        """Violated invariants of a module at this stage."""
        if m.stage != self.name:
            yield f"the module calls itself {m.stage}"
        yield from problems(m, types=self.typed)
        if self.extra is not None:
            yield from self.extra(m)


def _canonical(m: Module) -> Iterator[str]:
    sizes = {s for op in m.walk() for s in data_symbols(op)}
    for op in m.walk():
        if op.name in _DOES_NOTHING:
            yield f"{op_text(op)} does nothing"
        if not is_live(op, sizes):
            yield f"{op_text(op)} is dead"


def _fused(m: Module) -> Iterator[str]:
    for op in m.walk():
        if op.name == "fuse" and len(op.regions[0].yields) != len(op.results):
            yield f"{op_text(op)} does not return what its region yields"


def _laid_out(m: Module) -> Iterator[str]:
    for op in m.walk():
        for value in op.results:
            if isinstance(value.type, TensorType) and value.type.layout.tiles:
                yield f"{op_text(op)} has a result in layout {value.tensor.layout}"
    for value in m.main.results:
        if isinstance(value.type, TensorType) and not value.type.layout.is_row_major:
            yield f"the output %{value.name} is in layout {value.tensor.layout}"


def _scheduled(m: Module) -> Iterator[str]:
    for op in [op for func in m.funcs.values() for op in func.body.body]:
        if (
            op.name not in ("call", "view", "join", "deferred", "foreign")
            and not op.spec.host
            and "control" not in op.spec.tags
        ):
            yield f"{op_text(op)} is not lowered to te"
        if op.name == "call":
            yield from _call_fits(op, m)
    for f in m.te.values():
        names = {s.name for s in f.stages}
        for d in f.schedule:
            if d.stage not in names:
                yield f"te @{f.name} schedules {d.stage}, which it does not have"
        if not f.stages and not f.halide:
            yield f"te @{f.name} computes nothing"


def _call_fits(op: Op, m: Module) -> Iterator[str]:
    f = m.te.get(op.attrs.get("te", ""))
    if f is None:
        yield f"{op_text(op)} calls a te function that does not exist"
    elif len(op.operands) != len(f.params) or len(op.results) != len(f.results):
        yield f"{op_text(op)} does not fit te @{f.name}"


def _lowered(m: Module) -> Iterator[str]:
    for op in [op for func in m.funcs.values() for op in func.body]:
        if op.name not in LOWERED_OPS:
            yield f"{op_text(op)} is not a step of a plan"
        if op.name == "kernel" and op.attrs.get("te") not in m.te:
            yield f"{op_text(op)} calls a te function that does not exist"
    yield from plan_problems(m)


STAGES: tuple[Stage, ...] = (
    Stage("imported", "every op is known and in its latest opset form; types may be missing", typed=False),
    Stage("inferred", "every value has a type; operands that determine a shape are known, or the op is deferred"),
    Stage("canonical", "no dead, duplicate or empty ops; constants and affine steps folded", _canonical),
    Stage("fused", "each op is in a `fuse` region or alone; each of these becomes one kernel", _fused),
    Stage("layout", "every value has a physical layout; weights are packed", _laid_out),
    Stage("scheduled", "ops are calls of te functions, which have schedules", _scheduled),
    Stage("lowered", "a linear plan: alloc, kernel, view, host, foreign", _lowered),
)
BY_NAME = {s.name: s for s in STAGES}
ORDER = {s.name: k for k, s in enumerate(STAGES)}
