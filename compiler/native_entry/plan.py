"""The routines of a native entry: one for the plan, one for each sub-graph of control flow.

This is plain data; nothing here knows LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from occ.compiler.native_entry.bounds import upper
from occ.compiler.native_entry.output_shapes import Cases, Row
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Buffer, Function, Plan
from occ.runtime.signature import numpy_dtype

_SPECIAL = "@"  # what names of routines begin with that are no functions


HANDLE_BYTES = 8  # of a value that the host keeps


@dataclass(frozen=True)
class Slot:
    """Bytes that a routine needs during some of its steps, `first` to `last`.

    Attributes:
        phase: from which on the size is known: how many steps have found sizes that nothing bounds.
    """

    size: DimExpr
    first: int
    last: int
    phase: int = 0


@dataclass(frozen=True)
class Inner:
    """A function that a step runs.

    Attributes:
        name: of the function.
        env: what its symbols are in terms of those of the caller; those that no argument shows are the same there.
    """

    name: str
    env: Mapping[str, DimExpr]


@dataclass
class Routine:
    """A plan that is compiled.

    Attributes:
        name: of the function, empty for the main plan.
        function: signature, plan and constraints.
        symbols: sizes that it gets.
        slots: memory that it needs.
        slot_of: storage -> its slot.
        output_of: storage -> the output whose memory it is.
        double_buffers: of each scan and loop, two slots for each state, of which iterations read one and write the other; of loops then
            two slots for the number of the iteration and the condition before it, and one for the condition after it.
        staging: of each scan and loop, a slot for each scanned result whose slices are not aligned, as kernels want what they
            write to be; None for the others.
        scratch: of some host steps, a slot.
        inner: of each step, the functions that it runs.
        cases: outputs whose shape is one of two; an If gives them.
        bounds: sizes that the data decide, each with its upper bound; a step of the routine defines it. A size that nothing
            bounds is its own bound.
        phases: how many steps have found sizes when each of `bounds` is known, itself included.
        host: the steps that the host runs, each with the reason.
        by_host: the host runs it, for a step of control flow that is its own.
        rows: of each output of the model, where its extents are among the results of a call.
    """

    name: str
    function: Function
    symbols: tuple[str, ...] = ()
    slots: list[Slot] = field(default_factory=list)
    slot_of: dict[int, int] = field(default_factory=dict)
    output_of: dict[int, int] = field(default_factory=dict)
    double_buffers: dict[int, list[int]] = field(default_factory=dict)
    staging: dict[int, list[int | None]] = field(default_factory=dict)
    scratch: dict[int, int] = field(default_factory=dict)
    inner: dict[int, list[Inner]] = field(default_factory=dict)
    cases: dict[int, Cases] = field(default_factory=dict)
    bounds: dict[str, DimExpr] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    host: dict[int, str] = field(default_factory=dict)
    by_host: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """Whether it is the plan of the model, or that for certain extents, rather than a function."""
        return not self.name or self.name.startswith(_SPECIAL)

    @property
    def plan(self) -> Plan:
        return self.function.plan

    @property
    def open(self) -> set[str]:
        """Sizes that the data decide and that nothing bounds."""
        return {name for name, most in self.bounds.items() if most == name}

    @property
    def growing(self) -> int:
        """Number of results of loops that grow with each iteration, since nothing bounds the number of those."""
        loops = [s for k, s in enumerate(self.plan.steps) if s.kind == "loop" and k not in self.host]
        return sum(name in self.open for s in loops for _, _, name in s.binds)

    def phase_of(self, e: DimExpr) -> int:
        """The phase from which on an expression without bounded sizes is known."""
        return max((self.phases[s] for s in symbols(e) if s in self.phases), default=0)

    def outputs_of_phase(self, phase: int) -> list[int]:
        """Outputs that nothing bounds before a run, whose extents are known or bounded from a phase on."""
        found: list[int] = []
        for k, b in enumerate(map(self.plan.buffers.__getitem__, self.plan.outputs)):
            e = ["+", *(upper(n, self.bounds) for n in b.shape), 0]
            if k not in self.cases and not is_handle(b) and symbols(e) & self.open and self.phase_of(e) == phase:
                found.append(k)
        return found

    @property
    def returned_sizes(self) -> list[str]:
        """Sizes that the data decide which callers need: they get them, besides the results that have them."""
        shapes = [] if self.is_main else [self.plan.buffers[b].shape for b in self.plan.outputs]
        return sorted({s for shape in shapes for e in shape for s in symbols(e)} & self.bounds.keys())


def special_name(k: int) -> str:
    """The name of the routine for the extents of a plan besides the main one."""
    return f"{_SPECIAL}{k}"


def is_handle(b: Buffer) -> bool:
    """Whether a buffer is the number of a value that the host keeps.

    Such are sequences, optionals, maps, texts, and tensors of unknown rank.
    """
    return b.opaque or b.dtype == "str"


def bytes_of(b: Buffer) -> DimExpr:
    """Bytes of a dense buffer."""
    return HANDLE_BYTES if is_handle(b) else nbytes(b.shape, b.dtype)


def nbytes(shape: Sequence[DimExpr], dtype: str) -> DimExpr:
    """Bytes of a dense tensor."""
    return ["*", *shape, numpy_dtype(dtype).itemsize]


def put(e: DimExpr, env: Mapping[str, DimExpr]) -> DimExpr:
    """An expression with others instead of its symbols."""
    if isinstance(e, str):
        return env.get(e, e)
    return e if isinstance(e, int) else [e[0], *(put(a, env) for a in e[1:])]
