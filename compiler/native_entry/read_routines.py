"""Reads the routines of a native entry off a manifest, or says why there can be none.

All steps have to be kernels, copies, If, Scan or Loop, over tensors whose extents follow from those of the inputs, or a few
others that find sizes which something bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from occ.compiler.native_entry.bounds import HOST, LARGEST, SCRATCH, upper
from occ.compiler.native_entry.output_shapes import Cases, result_rows
from occ.compiler.native_entry.plan import Inner, Routine, Slot, nbytes, put, special_name
from occ.runtime.attributes import decode_attrs
from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Buffer, Function, Manifest, Step, TensorInfo
from occ.runtime.native.entry import MOST_AXES
from occ.runtime.native.last_steps import without_last_steps
from occ.runtime.signature import numpy_dtype

_NAMED = 5  # problems that an error lists
_KINDS = ("kernel", "copy", "if", "scan", "loop")
# Operands that a step may lack, by its kind, or by its name where that is `host`.
_OPTIONAL = {"loop": range(2), "NonMaxSuppression": range(2, 5)}


class Unsuitable(Exception):
    """A plan has something that only the Python runner does; the text says what, with the nodes."""


def routines(m: Manifest) -> list[Routine]:
    """The routines of a model, what is called before its callers.

    Raises:
        Unsuitable: it cannot have an entry.
    """
    made, problems = _read(m)
    if problems:
        more = len(problems) - _NAMED
        listed = f"{'; '.join(problems[:_NAMED])}{f'; and {more} more' if more > 0 else ''}"
        raise Unsuitable(f"only Python can run this model: {listed}")
    return made


def obstacles(m: Manifest) -> list[str]:
    """What keeps a model from having a native entry, node by node; nothing if it can have one."""
    return _read(m)[1]


def nodes_after(m: Manifest) -> list[str]:
    """The nodes of the last steps that Python runs after a native entry that has the rest.

    None if no entry has that.
    """
    parts = without_last_steps(m)
    if parts is None or obstacles(parts[0]):
        return []
    rest = {id(s) for s in parts[0].plan.steps}
    return [", ".join(s.nodes[:3]) or s.name for s in m.plan.steps if id(s) not in rest]


def _read(m: Manifest) -> tuple[list[Routine], list[str]]:
    reader, rows = _Reader(m), result_rows(m)
    for name, own in [("", m), *((special_name(k), m.at(k)) for k in range(len(m.special)))]:
        shown = {e for i in own.inputs for e in i.shape if isinstance(e, str)}
        waiting = [c for c in own.constraints if not symbols(c.lhs) | symbols(c.rhs) <= shown]
        r = reader.routine(name, Function(own.inputs, own.outputs, own.plan, waiting))
        r.rows = rows
        if reader.problems:
            return [], reader.problems
        if inner := set(r.symbols) - shown:
            labels = {d.name: d.label for d in own.dims}
            named = ", ".join(f"`{labels.get(s, s)}`" for s in sorted(inner))
            return [], [f"no extent of an input shows the size {named}"]
    return list(reader.done.values()), []


class _Reader:
    """Reads routines off the plans of a manifest."""

    def __init__(self, m: Manifest) -> None:
        self.m = m
        self.done: dict[str, Routine] = {}
        self.problems: list[str] = []

    def routine(self, name: str, f: Function) -> Routine:
        if name in self.done:
            return self.done[name]
        r = Routine(name, f)
        self._outputs(r)
        for k, step in enumerate(f.plan.steps):
            try:
                self._step(r, k, step)
            except Unsuitable as why:
                nodes = ", ".join(step.nodes[:3]) or step.name
                self.problems.append(f"node `{nodes}` {why}")
        for k, i in enumerate((*f.outputs, *f.inputs)):
            if i.dtype == "str" or (i.kind != "tensor" and k not in r.cases):
                what = "of texts" if i.dtype == "str" else f"of kind {i.kind}"
                self.problems.append(f"`{i.name}` is {what}")
        self.done[name] = r
        if self.problems:
            return r
        self._place(r)
        r.symbols = tuple(sorted(_needed(r) - set(r.bounds)))
        return r

    def _outputs(self, r: Routine) -> None:
        """A storage that no kernel writes, but control flow, may be an output as it is.

        The first that shows it.
        """
        for k, b in enumerate(r.plan.outputs):
            storage = r.plan.buffers[b].storage
            if r.plan.storages[storage].kind in ("output", "host"):
                r.output_of.setdefault(storage, k)

    def _step(self, r: Routine, k: int, step: Step) -> None:
        used = [*step.reads, *step.writes]
        buffers = r.plan.buffers
        if step.kind not in _KINDS and step.name not in HOST:
            raise Unsuitable(f"is a step of kind `{step.kind}`{f': {step.name}' if step.name else ''}")
        optional = _OPTIONAL.get(step.name if step.kind == "host" else step.kind, ())
        absent = -1 in step.writes or any(b < 0 and k not in optional for k, b in enumerate(step.reads))
        used = [b for b in used if b >= 0]
        cased = self._cased(r, step)
        if absent or any((buffers[b].opaque and b not in cased) or buffers[b].dtype == "str" for b in used):
            raise Unsuitable("has operands or results that are not plain tensors")
        match step.kind:
            case "kernel":
                pass
            case "copy":
                source, target = buffers[step.reads[0]], buffers[step.writes[0]]
                if (source.shape, source.dtype) != (target.shape, target.dtype):
                    raise Unsuitable("copies to another shape or element type")
            case "if":
                self._if(r, k, step)
            case "loop":
                self._loop(r, k, step)
            case "host":
                if any(buffers[b].strides for b in used):
                    raise Unsuitable("has operands or results that do not lie dense")
                # a size that was known before is not bound: the step checks it
                for (_, _, name), most in zip(step.binds, HOST[step.name](step, buffers), strict=False):
                    if most == LARGEST:
                        raise Unsuitable("finds a size that nothing bounds")
                    r.bounds[name] = upper(most, r.bounds)
                if step.name in SCRATCH:
                    r.scratch[k] = self._slot(r, SCRATCH[step.name](step, buffers), k)
            case _:
                self._scan(r, k, step)

    def _if(self, r: Routine, k: int, step: Step) -> None:
        cond, *captures = (r.plan.buffers[b] for b in step.reads)
        if cond.dtype != "bool":
            raise Unsuitable("has a condition that is not bool")
        writes = [r.plan.buffers[b] for b in step.writes]
        shapes = [b.shape for b in captures]
        found = {(place, axis) for place, axis, _ in step.binds}
        branches = (step.attrs["then_branch"], step.attrs["else_branch"])
        r.inner[k] = [self._inner(r, name, shapes, writes, found) for name in branches]
        for b, output in self._cased(r, step).items():
            place = step.writes.index(b)
            then, other = ([put(d, i.env) for d in self._result(i, place).shape] for i in r.inner[k])
            if max(len(then), len(other)) > MOST_AXES:
                raise Unsuitable(f"gives more than {MOST_AXES} axes")
            left, right = step.attrs["when"]
            if any(self._decided(i, place) for i in r.inner[k]):
                raise Unsuitable("gives results of sizes that the data decide")
            ranked = not r.plan.buffers[b].opaque
            step = replace(step, binds=[row for row in step.binds if step.writes[row[0]] != b])
            if ranked and len(then) != len(other):
                raise Unsuitable("gives results of unlike ranks")
            r.cases[output] = Cases((left, right), then, other, ranked)
        for place, axis, name in step.binds:
            ends = [upper(self._result(i, place).shape[axis], self.done[i.name].bounds) for i in r.inner[k]]
            then, other = (put(e, i.env) for e, i in zip(ends, r.inner[k], strict=True))
            r.bounds[name] = upper(["max", then, other], r.bounds)

    def _cased(self, r: Routine, step: Step) -> dict[int, int]:
        """Results of an If with one of two shapes, with the model outputs that they are."""
        if not r.is_main or step.kind != "if" or "when" not in step.attrs:
            return {}
        bound = {step.writes[k] for k, _, _ in step.binds}
        outputs = {b: k for k, b in enumerate(r.plan.outputs) if b in bound or r.plan.buffers[b].opaque}
        alone = {b for b in outputs if r.plan.outputs.count(b) == 1 and step.writes.count(b) == 1}
        kinds = {b: r.function.outputs[k].kind for b, k in outputs.items()}
        return {b: outputs[b] for b in step.writes if b in alone and kinds[b] in ("tensor", "unranked")}

    def _result(self, inner: Inner, place: int) -> Buffer:
        plan = self.m.functions[inner.name].plan
        return plan.buffers[plan.outputs[place]]

    def _decided(self, inner: Inner, place: int) -> set[int]:
        """The axes of a result of a function whose extents the data decide in it."""
        bounds = self.done[inner.name].bounds.keys()
        return {axis for axis, e in enumerate(self._result(inner, place).shape) if symbols(e) & bounds}

    def _scan(self, r: Routine, k: int, step: Step) -> None:
        if step.binds:
            raise Unsuitable("gathers slices of sizes that the data decide")
        a, reads = decode_attrs(step.attrs), [r.plan.buffers[b] for b in step.reads]
        states, rest = reads[: a.n_states], reads[a.n_states :]
        sequences, captures = rest[: a.num_scan_inputs], rest[a.num_scan_inputs :]
        if any((*(a.scan_input_axes or ()), *(a.scan_output_axes or ()))) or not sequences:
            raise Unsuitable("scans along other axes than the first")  # whose slices are no contiguous bytes
        shapes = [*(b.shape for b in states), *(b.shape[1:] for b in sequences), *(b.shape for b in captures)]
        self._iterations(r, k, step, states, shapes, [])

    def _loop(self, r: Routine, k: int, step: Step) -> None:
        a = decode_attrs(step.attrs)
        reads = [None if b < 0 else r.plan.buffers[b] for b in step.reads]
        for b, dtype in zip(reads, ("i64", "bool"), strict=False):
            if b is not None and (b.dtype != dtype or b.shape not in ([], [1])):
                raise Unsuitable(f"has {b.dtype}{b.shape} where it takes one {dtype}")
        for place, axis, name in step.binds:
            if "most" not in step.attrs or axis or place < a.n_carried:
                raise Unsuitable("gives results of extents that the data decide")
            r.bounds[name] = upper(step.attrs["most"][0], r.bounds)
        given = [b for b in reads[2:] if b is not None]
        shapes: list[Sequence[DimExpr]] = [[], [], *(b.shape for b in given)]
        self._iterations(r, k, step, given[: a.n_carried], shapes, [Buffer("bool", [], -1)])
        r.turns[k] += [self._slot(r, size, k) for size in (8, 1, 1)]

    def _iterations(
        self, r: Routine, k: int, step: Step, states: Sequence[Buffer], shapes: Sequence[Sequence[DimExpr]],
        first: Sequence[Buffer],
    ) -> None:  # fmt: skip
        """What Scan and Loop have in common: a body over states, which adds a slice to each scanned result.

        Args:
            r, k, step: the step of a routine.
            states: before the first iteration.
            shapes: of what the body is given.
            first: what it returns before the states.
        """
        writes = [r.plan.buffers[b] for b in step.writes]
        if any(s.shape != w.shape or s.dtype != w.dtype for s, w in zip(states, writes, strict=False)):
            raise Unsuitable("has states that change their shape")
        slices = [Buffer(b.dtype, b.shape[1:], b.storage) for b in writes[len(states) :]]
        r.inner[k] = [self._inner(r, decode_attrs(step.attrs).body, shapes, [*first, *writes[: len(states)], *slices])]
        sizes = [nbytes(s.shape, s.dtype) for s in states for _ in range(2)]
        r.turns[k] = [self._slot(r, size, k) for size in sizes]
        r.apart[k] = [None if _is_aligned(b) else self._slot(r, nbytes(b.shape, b.dtype), k) for b in slices]

    def _slot(self, r: Routine, size: DimExpr, step: int) -> int:
        r.slots.append(Slot(upper(size, r.bounds), step, step))
        return len(r.slots) - 1

    def _inner(
        self, r: Routine, name: str, shapes: Sequence[Sequence[DimExpr]], writes: Sequence[Buffer],
        found: Collection[tuple[int, int]] = (),
    ) -> Inner:  # fmt: skip
        """A function on operands of some shapes; `found` are axes of results whose extents the caller has it find."""
        f = self.m.functions[name]
        self.routine(name, f)
        fits = len(f.inputs) == len(shapes) and all(
            len(i.shape) == len(shape) for i, shape in zip(f.inputs, shapes, strict=True)
        )
        made = [f.plan.buffers[b] for b in f.plan.outputs]
        fits = fits and len(made) == len(writes) and all(
            a.dtype == b.dtype and not a.opaque and (b.opaque or len(a.shape) == len(b.shape)) for a, b in zip(made, writes, strict=True)
        )  # fmt: skip
        if not fits:
            raise Unsuitable(f"runs the function `{name}` on other shapes than it takes")
        inner = Inner(name, {s: s for s in self.done[name].symbols} | _bound(f.inputs, shapes))
        decided = {(place, axis) for place in range(len(made)) for axis in self._decided(inner, place)}
        known = set(r.bounds) | {s for shape in shapes for e in shape for s in symbols(e)}
        if not decided <= set(found) or known & set(self.done[name].told):
            raise Unsuitable("gives results of sizes that the data decide")
        return inner

    def _place(self, r: Routine) -> None:
        """Give a slot to what is in no memory of the caller, for as long as steps touch it."""
        end = len(r.plan.steps)
        touched: dict[int, list[int]] = {}
        for k, step in enumerate(r.plan.steps):
            for b in (b for b in (*step.reads, *step.writes, step.flag) if b >= 0):
                touched.setdefault(r.plan.buffers[b].storage, []).append(k)
        for b in r.plan.outputs:
            touched.setdefault(r.plan.buffers[b].storage, []).append(end)
        for k, at in touched.items():
            s = r.plan.storages[k]
            if k in r.output_of or s.kind not in ("arena", "host"):
                continue
            size = s.size
            if s.kind == "host":
                b = next(b for b in r.plan.buffers if b.storage == k)
                size = nbytes(b.shape, b.dtype)
            r.slot_of[k] = len(r.slots)
            r.slots.append(Slot(upper(size, r.bounds), min(at), max(at)))


def _is_aligned(b: Buffer) -> bool:
    """Whether rows of a tensor of that shape in order all begin at aligned addresses."""
    size = numpy_dtype(b.dtype).itemsize
    for n in b.shape:
        if not isinstance(n, int):
            return False
        size *= n
    return size % ALIGNMENT == 0


def _bound(infos: Sequence[TensorInfo], shapes: Sequence[Sequence[DimExpr]]) -> dict[str, DimExpr]:
    """As `runtime.signature.bind_shapes`, on expressions."""
    return {
        e: n for info, shape in zip(infos, shapes, strict=True) for e, n in zip(info.shape, shape, strict=True)
        if isinstance(e, str)
    }  # fmt: skip


def _needed(r: Routine) -> set[str]:
    """The symbols of all that a routine computes."""
    used = {b for s in r.plan.steps for b in (*s.reads, *s.writes) if b >= 0} | set(r.plan.outputs)
    used -= {r.plan.outputs[k] for k in r.cases}
    buffers = [r.plan.buffers[b] for b in used]
    exprs: list[DimExpr] = [e for b in buffers for e in (*b.shape, *b.strides, b.start)]
    exprs += [s.size for s in r.slots]
    exprs += [e for s in r.plan.steps for e in (*s.dims, s.tasks) if e is not None]
    exprs += [e for c in r.function.constraints for e in (c.lhs, c.rhs)]
    exprs += [e for inner in r.inner.values() for i in inner for e in i.env.values()]
    exprs += [e for c in r.cases.values() for e in (*c.when, *c.then, *c.otherwise)]
    return {name for e in exprs for name in symbols(e)}
