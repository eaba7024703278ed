"""The manifest of an artifact, as data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import field, fields, replace
from typing import Any

from occ.runtime.dataclass import dataclass
from occ.runtime.device_part import DevicePart
from occ.runtime.dims import Assumption, DimExpr, is_expression
from occ.runtime.element_types import ELEMENT_TYPES
from occ.runtime.errors import RunError
from occ.runtime.records import decode, encode, encoded

FORMAT = 3
SCALARS = {"sequence": "sequence of scalars", "optional": "optional of scalars"}  # kinds of an input


@dataclass(frozen=True)
class DimInfo:
    """A symbolic dim: its name in the model, and its bounds."""

    name: str
    label: str
    lo: int = 0
    hi: int | None = None
    divisible_by: int = 1

    @property
    def text(self) -> str:
        """The bounds as text: `multiples of 32 from 32 to 1280 as `height``."""
        most = "on" if self.hi is None else f"to {self.hi}"
        what = f"multiples of {self.divisible_by}" if self.divisible_by > 1 else "sizes"
        return f"{what} from {self.lo} {most} as `{self.label}`"

    def takes(self, n: int) -> bool:
        """Whether it may have that size."""
        return self.lo <= n and (self.hi is None or n <= self.hi) and n % self.divisible_by == 0


@dataclass(frozen=True)
class TensorInfo:
    """An input or output.

    Attributes:
        kind: `tensor`; `unranked` for a tensor of any shape; `sequence`, `optional` or `map`, whose `dtype` is that of
            the tensors within, and whose `shape` is required of these, -1 for any extent; empty if it is arbitrary, or
            in those of scalars (`SCALARS`).
    """

    name: str
    dtype: str
    shape: list[DimExpr]
    kind: str = "tensor"


@dataclass(frozen=True)
class Constraint:
    """Two sizes that the build assumed to be equal, and the node that requires it."""

    lhs: DimExpr
    rhs: DimExpr
    node: str


@dataclass(frozen=True)
class Buffer:
    """A tensor of the plan.

    Attributes:
        dtype: element type.
        shape: physical extents, row-major.
        storage: where it is, an index into `Plan.storages`; views share one.
        start: elements of the storage that are before its first one.
        strides: distance of neighbours on each axis, in elements; empty if it is dense.
        opaque: a sequence, an optional, or a tensor of unknown rank, which only host steps use; `shape` is empty.
    """

    dtype: str
    shape: list[DimExpr]
    storage: int
    opaque: bool = False
    start: DimExpr = 0
    strides: list[DimExpr] = field(default_factory=list)


@dataclass(frozen=True)
class Storage:
    """Bytes that hold buffers.

    Attributes:
        kind: `input`, `output`, `weight`, `arena`, `host` for results of host steps, or an accelerator's `device`.
        index: the index of the input, output or weight.
        size: bytes, for the arenas.
        first, last: steps during which the contents matter, for the arenas.
        offset: in its arena, if sizes are constant; -1 if it is computed per run shape.
    """

    kind: str
    index: int = 0
    size: DimExpr = 0
    first: int = 0
    last: int = 0
    offset: int = -1


# What steps do, by kind, and their fields in addition to name, reads, writes and nodes.
STEP_KINDS: dict[str, tuple[str, ...]] = {
    "kernel": ("dims", "tasks", "flag", "checks", "operations"),
    "host": ("attrs", "binds"),  # a routine of runtime/hostops
    "deferred": ("attrs", "binds"),  # an op compiled when its operands are known
    **dict.fromkeys(("if", "loop", "scan", "map"), ("attrs", "binds")),  # run functions of the manifest
    "foreign": ("attrs",),  # a function in a user's library, the member `attrs["library"]`
    "copy": (),
    "upload": ("attrs",),  # one host buffer to one device buffer
    "device": ("attrs",),  # runs a device part on device buffers; `attrs["max_shapes"]`: see `Step`
    "download": ("attrs",),  # device to host
    "wait": ("attrs",),  # stream `attrs["stream"]` waits for everything on stream `attrs["on"]` so far
    "sync": ("attrs",),  # the host waits for the stream
    "cpu_subgraph": (),  # runs a CPU subgraph on host buffers
}


@dataclass(frozen=True)
class Step:
    """One action of a run.

    Steps of accelerators name a stream in `attrs["stream"]`. Those of one stream run in order; those of two streams run
    concurrently unless a `wait` comes between.

    Attributes:
        kind: one of `STEP_KINDS`.
        name: symbol of the kernel or function, name of the host routine, or name of the part.
        reads: buffers read; -1 for an operand that is absent.
        writes: buffers written.
        binds: `[write, axis, symbol]`: sizes known only once a host step has run.
        dims: scalar arguments of a kernel, after the buffers.
        tasks: extent of the parallel loop that a kernel leaves to the runtime, or null.
        attrs: arguments of a host routine. For a device part with data-dependent result extents, `max_shapes` has the
            maximum extents of each buffer written; empty for those with known extents.
        nodes: ONNX nodes that the step implements.
        flag: buffer (i32 scalar) that a kernel sets to the number of the failed check, or -1.
        checks: messages of the checks, in order.
        operations: arithmetic operations of a kernel, for profiles.
    """

    kind: str
    name: str
    reads: list[int]
    writes: list[int]
    dims: list[DimExpr] = field(default_factory=list)
    tasks: DimExpr | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    flag: int = -1
    checks: list[str] = field(default_factory=list)
    operations: DimExpr = 0
    binds: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class WeightInfo:
    """A constant in the weights file."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """A plan: a list of steps over buffers.

    Attributes:
        arena: bytes of the arena if all sizes are constant, otherwise -1.
        inputs, outputs: buffer of each input and output.
        device_arena: bytes of the arena on the accelerator, likewise.
    """

    buffers: list[Buffer]
    storages: list[Storage]
    steps: list[Step]
    inputs: list[int]
    outputs: list[int]
    arena: int = -1
    device_arena: int = 0


@dataclass(frozen=True)
class Function:
    """A function that control-flow steps run: its signature, by position, its plan, and its assumptions."""

    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    plan: Plan
    constraints: list[Constraint] = field(default_factory=list)


@dataclass(frozen=True)
class Specialisation:
    """A plan for inputs of certain extents, in addition to the general plan.

    Attributes:
        dims, inputs, outputs, constraints: as in the manifest, with these extents; inputs that match use the plan.
    """

    dims: list[DimInfo]
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    constraints: list[Constraint]
    plan: Plan


@dataclass(frozen=True)
class Manifest:
    """Everything about an artifact except its weights and its code.

    Attributes:
        engine: the engine that runs it: `native`, `interp` or `ascend`.
        functions: functions that control-flow steps run, by name.
        parts, cpu_subgraphs: device parts, and CPU subgraphs, artifacts of their own in `cpu_subgraphs/NAME/`.
        options: options that the runtime reads: device, memory limit and the like.
        also: further machines with code; each has an artifact of its own in `machines/NAME/`.
        special, assumed: plans for certain extents, tried in order before `plan`; sizes that it assumes equal.
    """

    name: str
    target: str
    producer: str
    dims: list[DimInfo]
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    constraints: list[Constraint]
    weights: list[WeightInfo]
    plan: Plan
    library: str = ""
    engine: str = "native"
    machine: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    parts: list[DevicePart] = field(default_factory=list)
    cpu_subgraphs: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    also: list[str] = field(default_factory=list)
    special: list[Specialisation] = field(default_factory=list)
    assumed: list[Assumption] = field(default_factory=list)
    format: int = FORMAT

    def to_json(self) -> str:
        """The manifest as text; equal manifests produce equal texts."""
        return encode(vars(self))

    @property
    def plans(self) -> list[Plan]:
        """All plans by their entry numbers: the main one, functions by name, specialised ones."""
        return [self.plan, *(self.functions[n].plan for n in sorted(self.functions)), *(s.plan for s in self.special)]

    def at(self, k: int) -> Manifest:
        """The manifest of the model with extents for which it has a plan."""
        s = self.special[k]
        return replace(
            self, dims=s.dims, inputs=s.inputs, outputs=s.outputs, constraints=s.constraints, plan=s.plan, special=[]
        )

    @property
    def code_digest(self) -> str:
        """SHA-256 of the input of native code generation; the code contains it too, see `occ.runtime.native.engine`."""
        names = (*_OF_CODE, "special") if self.special else _OF_CODE
        digest = hashlib.sha256()
        for text in encoded({name: getattr(self, name) for name in names}):
            digest.update(text.encode())
        return digest.hexdigest()

    @classmethod
    def from_json(cls, data: bytes | str) -> Manifest:
        """Read a manifest.

        Raises:
            RunError: OCC0502 it is damaged, or of a newer format.
        """
        try:
            record = json.loads(data)
            version = record.get("format")
        except (ValueError, AttributeError, RecursionError) as e:
            raise RunError("OCC0502", f"the manifest is not readable: {e}", "build the artifact again") from None
        if version != FORMAT:
            raise RunError(
                "OCC0502", f"the artifact has format {version}, this runtime reads {FORMAT}", "build it again"
            )
        made, problem = None, ""
        try:
            made = decode(cls, record)
            problem = next(_problems(made), "")
        except (TypeError, KeyError, ValueError, IndexError, RecursionError, OverflowError) as e:
            problem = str(e) or type(e).__name__
        if made is None or problem:
            raise RunError("OCC0502", f"the manifest is damaged: {problem[:400]}", "build the artifact again")
        return made


# The fields on which native code depends.
_OF_CODE = ("inputs", "outputs", "dims", "constraints", "weights", "plan", "functions")


def _problems(m: Manifest) -> Iterator[str]:
    """Dangling references in a manifest."""
    for k, s in enumerate(m.special):
        if [(i.name, i.dtype) for i in s.inputs] != [(i.name, i.dtype) for i in m.inputs]:
            yield "a specialised plan has other inputs than the model"
        if [(o.name, o.dtype) for o in s.outputs] != [(o.name, o.dtype) for o in m.outputs]:
            yield "a specialised plan has other outputs than the model"
        yield from _problems(m.at(k))
    if any(not 0 <= n < 1 << 62 for w in m.weights for n in (w.offset, w.nbytes)):
        yield "a weight is outside of the weights file"
    tensors = [*m.inputs, *m.outputs, *(t for f in m.functions.values() for t in (*f.inputs, *f.outputs))]
    if any(t.dtype not in ELEMENT_TYPES for t in tensors if t.kind == "tensor"):
        yield "an input or output has an unknown element type"
    plans = [m.plan, *(f.plan for f in m.functions.values())]
    sizes = [e for t in tensors for e in t.shape] + [e for p in plans for e in _sizes(p)]
    for c in (*m.constraints, *(c for f in m.functions.values() for c in f.constraints)):
        sizes += [c.lhs, c.rhs]
    if (wrong := next((e for e in sizes if not is_expression(e)), None)) is not None:
        yield f"{str(wrong)[:60]} is not a size"
    if not m.library and any(s.kind == "kernel" for p in plans for s in p.steps):
        yield "it has kernels, but no library"
    if m.engine != "interp":  # whose plan is empty
        yield from _plan_problems(m.plan, len(m.inputs), len(m.outputs), len(m.weights))
    for f in m.functions.values():
        yield from _plan_problems(f.plan, len(f.inputs), len(f.outputs), len(m.weights))


_OPTIONAL = [f.name for f in fields(Step) if f.name not in ("kind", "name", "reads", "writes", "nodes")]


def _sizes(plan: Plan) -> Iterator[DimExpr]:
    for b in plan.buffers:
        yield from (*b.shape, *b.strides, b.start)
    yield from (s.size for s in plan.storages)
    for s in plan.steps:
        yield from (*s.dims, s.operations, 0 if s.tasks is None else s.tasks)
        found = len(s.attrs["defines"]) if isinstance(s.attrs.get("defines"), list) else 0
        # Sizes that an If compares; iterations of a Loop; definitions of `sizes`.
        for name, count in (("when", 2), ("upper_bounds", found or 1), ("defines", found)):
            given = s.attrs.get(name, [0] * count)
            yield from given if isinstance(given, list) and len(given) == count else ([given],)
        yield from _max_shapes(s) if s.kind == "device" and "max_shapes" in s.attrs else ()


def _max_shapes(step: Step) -> Iterator[DimExpr]:
    """Size expressions in the `max_shapes` of a device step; an empty list if it is malformed."""
    shapes = step.attrs["max_shapes"]
    fits = isinstance(shapes, list) and len(shapes) == len(step.writes) and all(isinstance(e, list) for e in shapes)
    yield from (e for extents in shapes for e in extents) if fits else ([],)


def _plan_problems(plan: Plan, inputs: int, outputs: int, weights: int) -> Iterator[str]:
    counts = {"input": inputs, "output": outputs, "weight": weights, "arena": 1, "host": 1, "device": 1}
    if (len(plan.inputs), len(plan.outputs)) != (inputs, outputs):
        yield "a plan has other inputs or outputs than its signature"
    if any(not 0 <= s.index < counts.get(s.kind, 0) for s in plan.storages):
        yield "a storage has no buffer"
    if any(not 0 <= b.storage < len(plan.storages) for b in plan.buffers):
        yield "a buffer is in no storage"
    if any(b.dtype not in ELEMENT_TYPES for b in plan.buffers if not b.opaque):
        yield "a buffer has an unknown element type"
    used = [*plan.inputs, *plan.outputs, *(b for s in plan.steps for b in (*s.reads, *s.writes) if b != -1)]
    used += [s.flag for s in plan.steps if s.flag != -1]
    if any(not 0 <= b < len(plan.buffers) for b in used):
        yield "a step names a buffer that does not exist"
    for step in plan.steps:
        if step.kind not in STEP_KINDS:
            yield f"there are no steps of kind {step.kind!a}"
        elif step.name == "sizes" and not _defines_sizes(step):
            yield "a step defines sizes that it does not list"
        elif stray := _stray(step):
            yield f"a step of kind {step.kind!a} has no {stray[0]}"


def _defines_sizes(step: Step) -> bool:
    """Whether a `sizes` step binds only elements that it defines, each with a bound."""
    defined, bounds = step.attrs.get("defines"), step.attrs.get("upper_bounds")
    if not isinstance(defined, list) or not isinstance(bounds, list) or (len(step.reads), len(step.writes)) != (1, 1):
        return False
    return all(row[0] == 0 and 0 <= row[1] < len(defined) and defined[row[1]] == row[2] for row in step.binds)


def _stray(step: Step) -> list[str]:
    """Non-empty fields that steps of this kind do not have."""
    own = STEP_KINDS[step.kind]
    return [f for f in _OPTIONAL if f not in own and getattr(step, f) not in (None, 0, -1, [], {})]
