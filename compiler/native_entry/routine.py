"""Emits a routine of the native entry: `i32 routine(call, inputs, outputs, memory, sizes...)`.

Its memory holds the frame, then the arena, then what its functions need. A step that fails is recorded in the call, and
its kind of failure returned.
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.arena import orders, typical
from occ.compiler.native_entry.bounds import upper
from occ.compiler.native_entry.builder import Builder
from occ.compiler.native_entry.frame import Frame
from occ.compiler.native_entry.kernel_cost import cost, moved
from occ.compiler.native_entry.loops import unless_empty
from occ.compiler.native_entry.plan import CallSite, Routine, bytes_of, put
from occ.compiler.native_entry.run_time_memory import LateMemory
from occ.compiler.native_entry.sizes import Size, Sizes, i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import I1, I32, I64, PTR
from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import DimInfo, Step
from occ.runtime.native.call import CHECK, DONE, KERNEL, MISFIT, NO_MEMORY, RANK_OF_VALUE
from occ.runtime.signature import numpy_dtype

Lift = Callable[[DimExpr], DimExpr]


def _as_it_is(e: DimExpr) -> DimExpr:
    return e


class RoutineEmitter:
    """Emits one routine.

    Args:
        support: shared by all routines of the module.
        r: the routine.
        index: its number in failures: 0 for the main plan, otherwise 1 + the position among the sorted function names.
        dims: the symbols of the model.
        others: already emitted routines, by name.
        emitters: of steps other than kernels and copies, by kind, or by name if that is `host`.
        host: emits requests to the host.
        names: all symbols, in the order in which the host gets their values.
    """

    def __init__(
        self, support: Support, r: Routine, index: int, dims: Sequence[DimInfo], others: Mapping[str, RoutineEmitter],
        emitters: Mapping[str, StepEmitter], host: HostCalls, names: Sequence[str],
    ) -> None:  # fmt: skip
        self.support, self.r, self.index, self.others, self.emitters = support, r, index, others, emitters
        self.host, self.names = host, names
        self.frame = Frame.of(r, support.layout)
        self._orders = orders(r.slots, typical(dims, [*r.symbols, *r.open]))
        kinds = [PTR] * 4 + [I64] * len(r.symbols)
        self.fn = support.internal(f"occ_plan_{index}", ir.FunctionType(I32, kinds), straight=True)
        self.size_fn = support.internal(f"occ_size_{index}", ir.FunctionType(I64, kinds[4:]), straight=True)
        self._emit_size()
        self.call, self.inputs, self.outputs, self.memory = self.fn.args[:4]
        blocks = [self.fn.append_basic_block(n) for n in ("head", "steps")]
        self.head, self.b = (Builder(block) for block in blocks)
        self.failed, self.gone = (self.fn.append_basic_block(n) for n in ("failed", "gone"))
        fail = Builder(self.failed)
        self._reason = [fail.phi(I32, n) for n in ("code", "step", "detail")]
        self._reason += [fail.phi(I64, n) for n in ("got", "wanted")]
        self._code = Builder(self.gone).phi(I32, "code")
        self.sizes = Sizes(self.head, dict(zip(r.symbols, self.fn.args[4:], strict=True)))
        self._offsets, arena = self._arena(self.sizes)
        self._bases: dict[int, Any] = {}
        late = [inner for row in r.inner.values() for inner in row if self._is_late(inner)]
        self.late = LateMemory(support, self.head, len(self._orders) - 1 + len(late) + r.growing)
        self._once_sized: list[Callable[[], None]] = []
        self._room_inside = self._inner_room(self.sizes, _as_it_is) if self.r.open else 0
        self._pointers: dict[int, Any] = {}
        self._starts: dict[tuple[int, str, str], Any] = {}
        self._steps, self._phase, self._known = blocks[1], 0, set[str]()
        self._unchecked = list(r.function.constraints)
        self._bases[0] = support.at(self.head, self.memory, len(self.frame.template))
        self.beyond = support.at(self.head, self._bases[0], arena)
        self._emit()

    # memory

    def _is_late(self, inner: CallSite) -> bool:
        """Whether a function needs memory of a size without a bound before a run."""
        return any(symbols(upper(e, self.r.bounds)) & self.r.open for e in inner.env.values())

    def _arena(self, sizes: Sizes, most: Lift = _as_it_is, phase: int = 0) -> tuple[dict[int, Size], Size]:
        """Offset of each slot of a phase in its arena, and the arena's size."""
        offsets: dict[int, Size] = {}
        ends: dict[int, Size] = {}
        rows = self._orders.get(phase, [])
        for k, below in rows:
            offsets[k] = 0
            for p in below:
                offsets[k] = sizes.max(offsets[k], ends[p])
            ends[k] = sizes.plus(offsets[k], sizes.aligned(sizes.of(most(self.r.slots[k].size))))
        inner = {p for _, below in rows for p in below}
        total: Size = 0
        for k, end in ends.items():
            if k not in inner:
                total = sizes.max(total, end)
        return offsets, total

    def _emit_size(self) -> None:
        """`i64 size(sizes...)`: bytes of memory that a run of the routine needs."""
        b = Builder(self.size_fn.append_basic_block("entry"))
        sizes = Sizes(b, dict(zip(self.r.symbols, self.size_fn.args, strict=True)))
        b.ret(i64(self._room(sizes, _as_it_is)))

    def _room(self, sizes: Sizes, most: Lift) -> Size:
        """Bytes of memory that a run needs; without allocations for unbounded sizes.

        Args:
            sizes: where expressions are emitted.
            most: turns an expression over this routine's symbols into an upper bound that `sizes` can evaluate.
        """
        _, arena = self._arena(sizes, most)
        return sizes.plus(sizes.plus(arena, self._inner_room(sizes, most)), len(self.frame.template))

    def _inner_room(self, sizes: Sizes, most: Lift) -> Size:
        """Bytes that the functions need, of which one runs at a time."""
        room: Size = ALIGNMENT  # vectors may read past the last tensor
        for inner in (i for row in self.r.inner.values() for i in row if not self._is_late(i)):
            callee = self.others[inner.name]
            given = [inner.env[s] for s in callee.r.symbols]
            if most is _as_it_is and not any(symbols(e) & self.r.bounds.keys() for e in given):
                need = sizes.b.call(callee.size_fn, [i64(sizes.of(e)) for e in given])
            else:  # data-dependent sizes with known upper bounds
                need = callee._room(sizes, lambda e, env=inner.env: most(upper(put(e, env), self.r.bounds)))
            room = sizes.max(room, need)
        return room

    def slot(self, index: int) -> Any:
        """Address of a slot."""
        return self.support.at(self.head, self._bases[self.r.slots[index].phase], self._offsets[index])

    def _take_arena(self, phase: int) -> None:
        """Memory for the slots whose sizes are known from a phase on."""
        offsets, size = self._arena(self.sizes, phase=phase)
        self._offsets |= offsets
        base, self.beyond, _ = self.late.take(self.head, self.call, self.beyond, size, self._room_inside)
        self._bases[phase] = base
        self.fail_if(self.b.icmp_unsigned("==", base, ir.Constant(PTR, None)), NO_MEMORY, -1, I32(0))

    def pointer(self, storage: int) -> Any:
        """Address of a storage."""
        if storage not in self._pointers:
            self._pointers[storage] = self._address(storage)
        return self._pointers[storage]

    def _address(self, storage: int) -> Any:
        s = self.r.plan.storages[storage]
        if storage in self.r.output_of:
            return self.support.load(self.head, self.outputs, self.support.layout.pointer * self.r.output_of[storage])
        if storage in self.r.slot_of:
            return self.slot(self.r.slot_of[storage])
        if s.kind == "weight":
            return self.support.load(
                self.head,
                self.support.load(self.head, self.call, self.support.layout.call["weights"]),
                self.support.layout.pointer * s.index,
            )
        assert s.kind == "input", f"storage {storage} has no memory"
        return self.support.load(self.head, self.inputs, self.support.layout.pointer * s.index)

    def buffer(self, index: int) -> Any:
        """Address of a buffer."""
        b = self.r.plan.buffers[index]
        key = (b.storage, str(b.start), b.dtype)
        if key not in self._starts:
            start = self.sizes.of(["*", b.start, numpy_dtype(b.dtype).itemsize])
            self._starts[key] = self.support.at(self.head, self.pointer(b.storage), start)
        return self._starts[key]

    def bytes_of(self, index: int) -> Size:
        b = self.r.plan.buffers[index]
        return self.sizes.of(bytes_of(b))

    # the body

    def _emit(self) -> None:
        if self.frame.template:
            template = self.support.constant(f"frame_{self.index}", bytes(self.frame.template))
            self.support.memcpy(self.head, self.memory, template, len(self.frame.template))
        self._begin(0)
        for k, step in enumerate(self.r.plan.steps):
            self._step(k, step)
        for k, index in enumerate(self.r.plan.outputs):
            if self.r.output_of.get(self.r.plan.buffers[index].storage) != k:
                given = self.support.load(self.head, self.outputs, self.support.layout.pointer * k)
                self.copy(given, self.buffer(index), self.bytes_of(index))
        if self.r.bounds and self.r.is_main:
            self._store_results()
        for k, name in enumerate(self.r.returned_sizes):
            place = self.support.load(
                self.b, self.outputs, self.support.layout.pointer * (len(self.r.plan.outputs) + k)
            )
            self.support.store(self.b, self.sizes.of(name), place, 0)
        self._code.add_incoming(I32(DONE), self.b.block)
        self.b.branch(self.gone)
        self.head.branch(self._steps)
        self._finish()

    def _step(self, k: int, step: Step) -> None:
        found = None
        if k in self.r.host:
            found = self.host.run(self, k, step)
        elif step.kind == "kernel":
            self._kernel(k, step)
        elif step.kind == "copy":
            self.copy(self.buffer(step.writes[0]), self.buffer(step.reads[0]), self.bytes_of(step.reads[0]))
        else:
            found = self.emitters[step.name if step.kind == "host" else step.kind](self, k, step)
        if step.binds:
            self._go_on(found or {})
            for emit in self._once_sized:
                emit()
            self._once_sized = []

    def _go_on(self, found: Mapping[str, Any]) -> None:
        """Begin the next phase: a step has produced sizes that later steps use."""
        self._split(found)
        self._phase += 1
        self._known |= found.keys()
        self._begin(self._phase)

    def _split(self, found: Mapping[str, Any]) -> None:
        """Emit the following in a separate head, after all steps so far."""
        head, steps = (self.fn.append_basic_block(n) for n in ("head", "steps"))
        self.b.branch(head)
        self.head.branch(self._steps)
        self.head, self.b, self._steps = Builder(head), Builder(steps), steps
        self.sizes.go_on(self.head, found)

    def _begin(self, phase: int) -> None:
        """Complete the frame, and check the plan's assumptions, as far as sizes are newly known."""
        if phase in self._orders and phase:
            self._take_arena(phase)
        if late := self.r.outputs_of_phase(phase):
            for k in late:
                self.host.output(self, k)
            self._split({})
        f, cuts = self.frame, [(0, 0), *self.frame.cuts]
        (from_size, from_host), (to_size, to_host) = cuts[phase : phase + 2]
        sizes = [(at, i64(self.sizes.of(e))) for at, e in f.sizes[from_size:to_size]]
        hosts = [(at, self.buffer(index)) for at, index in f.hosts[from_host:to_host]]
        if f.template:
            inside = f.inside if phase == 0 else []
            self.support.complete(self.head, self.memory, f"{self.index}_{phase}", inside, sizes, hosts)
        for c in self._unchecked[:]:
            if not (symbols(c.lhs) | symbols(c.rhs)) & (self.r.bounds.keys() - self._known):
                self._unchecked.remove(c)
                self.require(self.sizes.of(c.lhs), self.sizes.of(c.rhs), -1, self.r.function.constraints.index(c))

    def _store_results(self) -> None:
        """The extents of outputs, now that they are known; before the run the caller got upper bounds."""
        results = self.support.load(self.b, self.call, self.support.layout.call["results"])
        for k, index in enumerate(self.r.plan.outputs):
            if k in self.r.cases:
                continue
            row, shape = self.r.rows[k], self.r.plan.buffers[index].shape
            if row.ranked:
                shape = [RANK_OF_VALUE if self.r.plan.buffers[index].opaque else len(shape), *shape]
            for at, e in enumerate(shape, row.at):
                self.support.store(self.b, i64(self.sizes.of(e)), results, 8 * at)

    def _kernel(self, k: int, step: Step) -> None:
        work = self._work(step)
        if work is False:
            return
        args = self.support.at(self.b, self.memory, self.frame.blocks[k])
        if work is True:
            self._call_kernel(k, step, args)
        else:
            unless_empty(self.b, work, lambda: self._call_kernel(k, step, args))

    def _call_kernel(self, k: int, step: Step, args: Any) -> None:
        tasks = None if step.tasks is None else self.sizes.of(step.tasks)
        seen = [
            I32(self.index),
            I32(k),
            i64(self.sizes.of(step.operations)),
            i64(self.sizes.of(["+", 0, *moved(self.r.plan, step)])),
        ]
        code = self.support.run_kernel(
            self.b, self.call, step.name, args, tasks, self.sizes.of(cost(self.r.plan, step)), seen
        )
        self.fail_if(self.b.icmp_signed("!=", code, I32(0)), KERNEL, k, code)
        if step.flag >= 0:
            flag = self.b.load(self.b.bitcast(self.buffer(step.flag), I32.as_pointer()))
            self.fail_if(self.b.icmp_signed(">", flag, I32(0)), CHECK, k, flag)

    def _work(self, step: Step) -> Any:
        """Whether any result of a kernel has elements: a bool, or an i1."""
        found: Any = False
        for index in step.writes:
            n = self.sizes.of(["*", *self.r.plan.buffers[index].shape, 1])
            if isinstance(n, int):
                if n:
                    return True
                continue
            some = self.head.icmp_signed("!=", n, I64(0))
            found = some if found is False else self.head.or_(found, some)
        return found

    # for steps

    def once_sized(self, emit: Callable[[], None]) -> None:
        """Register code that runs after memory is allocated for results of data-dependent size of the current step."""
        self._once_sized.append(emit)

    def copy(self, target: Any, source: Any, size: Size) -> None:
        """Copy bytes, unless source and destination are the same memory."""
        there = self.b.icmp_unsigned("==", target, source)
        size = self.b.select(there, I64(0), i64(size))
        self.support.memcpy(self.b, target, source, size)

    def require(self, a: Size, b: Size, step: int, constraint: int = 0) -> None:
        """Fail if two sizes are not equal; step -1 means an assumption of the routine."""
        if isinstance(a, int) and isinstance(b, int):
            if a != b:
                self.fail_if(I1(1), MISFIT, step, I32(constraint), i64(a), i64(b))
        elif a is not b:
            differ = self.b.icmp_signed("!=", i64(a), i64(b))
            self.fail_if(differ, MISFIT, step, I32(constraint), i64(a), i64(b))

    def require_that(self, cond: Any, step: int) -> None:
        """Fail if sizes differ from the plan's assumptions."""
        self.fail_if(self.b.not_(cond), MISFIT, step, I32(0))

    def run(self, name: str, env: Mapping[str, Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        """Call another routine, with its symbols by `env` in terms of the current ones; returns the sizes it defines."""
        callee = self.others[name]
        given = [i64(self.sizes.of(env[s])) for s in callee.r.symbols]
        returned = {s: self.head.bitcast(self.head.alloca(I64), PTR) for s in callee.r.returned_sizes}
        lists = [self.listed(inputs), self.listed([*outputs, *returned.values()])]
        beyond, piece = self.beyond, -1
        if any(symbols(upper(e, self.r.bounds)) & self.r.open for e in env.values()):
            need = self.b.call(callee.size_fn, given)
            beyond, _, piece = self.late.take(self.b, self.call, beyond, need, 0)
            self.fail_if(self.b.icmp_unsigned("==", beyond, ir.Constant(PTR, None)), NO_MEMORY, -1, I32(0))
        code = self.b.call(callee.fn, [self.call, *lists, beyond, *given])
        after = self.fn.append_basic_block("went")
        self._code.add_incoming(code, self.b.block)
        self.b.cbranch(self.b.icmp_signed("!=", code, I32(0)), self.gone, after)
        self.b.position_at_end(after)
        if piece >= 0:
            self.late.give_back(self.b, piece)
        return {s: self.support.load(self.b, p, 0, I64) for s, p in returned.items()}

    def listed(self, pointers: Sequence[Any]) -> Any:
        made = self.head.bitcast(self.head.alloca(PTR, I32(max(len(pointers), 1))), PTR)
        for k, p in enumerate(pointers):
            self.support.store(self.b, p, made, self.support.layout.pointer * k)
        return made

    def fail_if(self, cond: Any, code: int, step: int, detail: Any, got: Any = None, wanted: Any = None) -> None:
        """Fail if a condition holds."""
        after = self.fn.append_basic_block("fits")
        values = (I32(code), I32(step), detail, got or I64(0), wanted or I64(0))
        for phi, value in zip(self._reason, values, strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.cbranch(cond, self.failed, after)
        self.b.position_at_end(after)

    def _finish(self) -> None:
        b, (code, *reason) = Builder(self.failed), self._reason
        for value, field in zip([I32(self.index), *reason], ("plan", "step", "detail", "got", "wanted"), strict=True):
            self.support.store(b, value, self.call, self.support.layout.call[field])
        self._code.add_incoming(code, b.block)
        b.branch(self.gone)
        b.position_at_end(self.gone)
        self.late.give_all_back(b)
        b.ret(self._code)


StepEmitter = Callable[[RoutineEmitter, int, Step], Mapping[str, Any] | None]
"""Emits a step of a routine, with its number; returns the sizes that it defines, by symbol, i64."""


@dataclass(frozen=True)
class HostCalls:
    """Emits requests to the host.

    Attributes:
        run: of a step; returns the sizes that it defines, by symbol, i64.
        output: of memory for an output, by its number.
    """

    run: Callable[[RoutineEmitter, int, Step], Mapping[str, Any]]
    output: Callable[[RoutineEmitter, int], None]
