"""The routines of a native entry: one for the plan, one for each sub-graph of control flow.

This is plain data; nothing here knows LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from occ.compiler.native_entry.bounds import upper
from occ.compiler.native_entry.output_shapes import Cases, Row
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Buffer, Function, Plan
from occ.runtime.signature import numpy_dtype

_SPECIAL = "@"  # prefix of routine names that are not functions


HANDLE_BYTES = 8  # of a value that the host keeps


@dataclass(frozen=True)
class Slot:
    """Bytes that a routine needs during some of its steps, `first` to `last`.

    Attributes:
        phase: from which its size is known: the number of steps so far that have produced unbounded sizes.
    """

    size: DimExpr
    first: int
    last: int
    phase: int = 0


@dataclass(frozen=True)
class CallSite:
    """A function that a step runs.

    Attributes:
        name: of the function.
        env: its symbols in terms of the caller's; those that no argument shows are the same there.
    """

    name: str
    env: Mapping[str, DimExpr]


@dataclass
class Routine:
    """A plan that is compiled.

    Attributes:
        name: of the function, empty for the main plan.
        function: signature, plan and constraints.
        symbols: sizes that it receives.
        slots: memory that it needs.
        slot_of: storage -> its slot.
        output_of: storage -> the output whose memory it is.
        double_buffers: for each scan and loop, two slots per state, which iterations read and write alternately; for
            loops then two slots for the iteration number and the preceding condition, and one for the following
            condition.
        staging: for each scan and loop, a slot per scanned result with unaligned slices, as kernels need aligned
            outputs; None for the others.
        scratch: a slot for some host steps.
        inner: the functions that each step runs.
        cases: outputs with one of two shapes, results of an If.
        bounds: data-dependent sizes, each with its upper bound; a step of the routine defines it. An unbounded size is
            its own bound.
        phases: how many steps have produced sizes when each of `bounds` is known, itself included.
        host: the steps that the host runs, each with the reason.
        by_host: whether the host runs it, for control flow of its own.
        rows: for each output of the model, the position of its extents among the results of a call.
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
    inner: dict[int, list[CallSite]] = field(default_factory=dict)
    cases: dict[int, Cases] = field(default_factory=dict)
    bounds: dict[str, DimExpr] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    host: dict[int, str] = field(default_factory=dict)
    by_host: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """Whether it is the model's plan, or one for specific extents, rather than a function."""
        return not self.name or self.name.startswith(_SPECIAL)

    @property
    def plan(self) -> Plan:
        return self.function.plan

    @property
    def open(self) -> set[str]:
        """Data-dependent sizes without a bound."""
        return {name for name, most in self.bounds.items() if most == name}

    @property
    def growing(self) -> int:
        """Number of loop results that grow with each iteration, since the trip count has no bound."""
        loops = [s for k, s in enumerate(self.plan.steps) if s.kind == "loop" and k not in self.host]
        return sum(name in self.open for s in loops for _, _, name in s.binds)

    def phase_of(self, e: DimExpr) -> int:
        """The phase from which on an expression without bounded sizes is known."""
        return max((self.phases[s] for s in symbols(e) if s in self.phases), default=0)

    def outputs_of_phase(self, phase: int) -> list[int]:
        """Outputs without bounds before a run, whose extents are known or bounded from a phase on."""
        found: list[int] = []
        for k, b in enumerate(map(self.plan.buffers.__getitem__, self.plan.outputs)):
            e = ["+", *(upper(n, self.bounds) for n in b.shape), 0]
            if k not in self.cases and not is_handle(b) and symbols(e) & self.open and self.phase_of(e) == phase:
                found.append(k)
        return found

    @property
    def returned_sizes(self) -> list[str]:
        """Data-dependent sizes that callers need: they are returned in addition to the results that have them."""
        shapes = [] if self.is_main else [self.plan.buffers[b].shape for b in self.plan.outputs]
        return sorted({s for shape in shapes for e in shape for s in symbols(e)} & self.bounds.keys())


def special_name(k: int) -> str:
    """The name of the routine for the extents of an additional plan."""
    return f"{_SPECIAL}{k}"


def is_handle(b: Buffer) -> bool:
    """Whether a buffer holds the number of a value that the host keeps.

    Such values are sequences, optionals, maps, strings, and tensors of unknown rank.
    """
    return b.opaque or b.dtype == "str"


def bytes_of(b: Buffer) -> DimExpr:
    """Bytes of a dense buffer."""
    return HANDLE_BYTES if is_handle(b) else nbytes(b.shape, b.dtype)


def nbytes(shape: Sequence[DimExpr], dtype: str) -> DimExpr:
    """Bytes of a dense tensor."""
    return ["*", *shape, numpy_dtype(dtype).itemsize]


def put(e: DimExpr, env: Mapping[str, DimExpr]) -> DimExpr:
    """An expression with its symbols replaced by others."""
    if isinstance(e, str):
        return env.get(e, e)
    return e if isinstance(e, int) else [e[0], *(put(a, env) for a in e[1:])]
