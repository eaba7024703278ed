"""Internal ops of general use, in lower case. They have no ONNX schema."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from math import prod

from occ.compiler.ir.dim import floordiv
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.movement import Concat, flatten
from occ.compiler.ir.ops.prefix import cache_places
from occ.compiler.ir.ops.shape_of import pick
from occ.compiler.ir.te.expr import cast, where, wrap
from occ.compiler.ir.types import TensorType


@op("fuse", region=True, own_attributes="kind=text schedule=text?")
class Fuse:
    """Ops that become one kernel. They stay in the region, so grouping cannot change the result."""

    def infer(*operands, a):
        return tuple(v.type for v in a.regions[0].yields)


@op(
    "foreign",
    region=True,
    own_attributes="""kind=text kernel=text source=text? names=texts? library=text? digest=text? symbol=text? arguments=tuple?
        gives_code=bool? writes=int?""",
)
class Foreign:
    """A user's kernel; the region defines what it computes. Everything it reads is an operand, constants too."""

    def infer(*operands, a):
        return tuple(v.type for region in a.regions for v in region.yields)


@op("yield", own_attributes="")
class Yield:
    """Closes a region."""

    region = True

    def infer(*operands, a):
        return ()


@op("dims", tags=("shape",), writes="any", own_attributes="values=values shape=sizes dtype=dtype?")
class Dims:
    """A tensor of sizes derived from input shapes, which Shape -> Gather -> Concat folds to."""

    def infer(*, a):
        return TensorType(getattr(a, "dtype", I64), a.shape)

    def body(t, *, a):
        return t.map(
            a.shape, lambda *i: cast(getattr(a, "dtype", I64), pick(a.values, flatten(i, a.shape))), name="dims"
        )


@op("interleave", writes="channels", own_attributes="strides=ints before=sizes shape=sizes group=int?")
class Interleave:
    """Interleaves phases: `out[n, o, p...] = x[n, f*O + o, q...]` where `p + before = s*q + f`.

    That holds on each axis; `f` is row-major over the axes. In groups each has its own `f*O + o`, in order.
    """

    def body(t, x, *, a):
        count, groups = prod(a.strides), getattr(a, "group", None) or 1
        channels = floordiv(x.shape[1], count)
        each = floordiv(channels, groups)

        def element(n, o, *at):
            shifted = [p + b for p, b in zip(at, a.before, strict=True)]
            phase = flatten([p % s for p, s in zip(shifted, a.strides, strict=True)], a.strides)
            place = phase * channels + o if groups == 1 else (o // each * count + phase) * each + o % each
            return x[(n, place, *(p // s for p, s in zip(shifted, a.strides, strict=True)))]

        return t.map([x.shape[0], channels, *a.shape], element, name="interleave")


@op("pack", tags=("declared",), own_attributes="")
class Pack:
    """Copies a tensor to another memory layout, that of the result."""

    def body(t, x, *, a):
        return t.map(x.shape, lambda *i: x[i], name="pack")


@op("copy", tags=("declared",), own_attributes="")
class Copy:
    """Copies a tensor to other memory; does nothing if both are the same memory."""

    host = "copy"


@op("join", writes="any", joins=True, own_attributes="axis=int")
class Join:
    """Concat of operands that are inside the memory of the result."""

    body = Concat.body


@op("append", reads="rows", writes="rows", own_attributes="")
class Append:
    """`past` followed by `new` along the first axis; a caller may have put `past` at the start of the result."""

    operands = ("new", "past")

    def body(t, new, past, *, a):
        length = past.shape[0]

        def element(i, *rest):
            return where(i < wrap(length), past[(i, *rest)], new[(i - wrap(length), *rest)])

        return t.map((length + new.shape[0], *new.shape[1:]), element, name="append")


@op("write_into", reads="rows", writes="rows", own_attributes="axis=int circular=bool operator=text")
class WriteInto:
    """`base` with `new` written from position `starts[n]` on along an axis (default 0); wraps around if circular.

    A caller may have put `base` in the result's memory: the rest of it is not touched. `operator` is the ONNX operator.
    """

    operands = ("base", "new", "starts")

    def body(t, base, new, starts=None, *, a):
        start = cache_places(t, base, new, starts, a.axis, circular=a.circular, name=a.operator)
        size = wrap(base.shape[a.axis])

        def target(*u):
            place = start(u[0]) + u[a.axis]
            return (*u[: a.axis], place % size if a.circular else place, *u[a.axis + 1 :])

        return t.scatter(base.shape, lambda *i: base[i], new.shape, target, lambda *u: new[u], combine="into")


# Ops of the `scheduled` and `lowered` stages: the pass that creates them states their result types.
_DECLARED = ("declared",)


@op("call", region=True, tags=_DECLARED, own_attributes="te=text dims=sizes? checks=texts?")
class Call:
    """Runs a te function: `call(operands) {te="name", dims=[...]}`."""


@op("alloc", region=True, tags=_DECLARED, own_attributes="first=int? last=int? offset=int? output=int? host=bool?")
class Alloc:
    """A buffer of the run's arena: live over a range of steps, at an offset where sizes are constant."""


@op("kernel", region=True, tags=_DECLARED, own_attributes="te=text dims=sizes? checks=texts? writes=int")
class Kernel:
    """Calls a compiled kernel: the operands it reads, then the buffers it writes."""


@op("view", region=True, tags=_DECLARED, own_attributes="start=size? transposed=bool?")
class View:
    """The operand's bytes under another type."""


@op("deferred", region=True, tags=_DECLARED, own_attributes="op=text")
class Deferred:
    """An op compiled at run time, when its operands are known: it depends on their values or ranks."""


@op("host", region=True, tags=_DECLARED, own_attributes="routine=text writes=int n_results=int? *")
class Host:
    """A runtime routine that is not a kernel."""


ALL: tuple[OpSpec, ...] = (
    Fuse,
    Foreign,
    Yield,
    Dims,
    Interleave,
    Pack,
    Copy,
    Join,
    Append,
    WriteInto,
    Call,
    Alloc,
    Kernel,
    View,
    Deferred,
    Host,
)
