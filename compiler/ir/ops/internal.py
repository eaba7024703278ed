"""The compiler's own ops, in lower case. They have no ONNX schema."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import I64
from occ.compiler.ir.expr import cast
from occ.compiler.ir.ops.movement import flatten
from occ.compiler.ir.ops.shape_of import pick
from occ.compiler.ir.ops.spec import OpSpec, op
from occ.compiler.ir.types import TensorType


@op("fuse", region=True)
class Fuse:
    """Ops that become one kernel. The region still contains them, so grouping cannot change what is computed."""

    def infer(*operands, a):
        return tuple(v.type for v in a.regions[0].yields)


@op("yield")
class Yield:
    """Closes a region."""

    region = True

    def infer(*operands, a):
        return ()


@op("dims", tags=("shape",))
class Dims:
    """A tensor of sizes that follow from the shapes of the inputs: what is left of Shape -> Gather -> Concat."""

    def infer(*, a):
        return TensorType(getattr(a, "dtype", I64), a.shape)

    def body(t, *, a):
        return t.map(
            a.shape, lambda *i: cast(getattr(a, "dtype", I64), pick(a.values, flatten(i, a.shape))), name="dims"
        )


# Ops of the `scheduled` and `lowered` stages: their result types are stated by the pass that makes them.
_DECLARED = ("declared",)


@op("call", region=True, tags=_DECLARED)
class Call:
    """Runs a te function: `call(operands) {te="name", dims=[...]}`."""


@op("alloc", region=True, tags=_DECLARED)
class Alloc:
    """A buffer of the run's arena: live over a range of steps, at an offset where sizes are constant."""


@op("kernel", region=True, tags=_DECLARED)
class Kernel:
    """Calls a compiled kernel: the operands it reads, then the buffers it writes."""


@op("view", region=True, tags=_DECLARED)
class View:
    """The operand's bytes under another type."""


@op("host", region=True, tags=_DECLARED)
class Host:
    """A routine of the runtime that is not a kernel."""


ALL: tuple[OpSpec, ...] = (Fuse, Yield, Dims, Call, Alloc, Kernel, View, Host)
