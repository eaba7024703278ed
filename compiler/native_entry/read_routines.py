"""Translates the plan of a model, and the functions of its control flow, to routines of the native entry.

Kernels, copies, If, Scan and Loop over tensors, and a few operators that produce sizes, are compiled. Other steps are
run by the host through callbacks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace

from occ.compiler.native_entry.bounds import HOST, LARGEST, SCRATCH, TYPES, upper
from occ.compiler.native_entry.output_memory import is_aligned, written_before_sized
from occ.compiler.native_entry.output_shapes import Cases, result_rows
from occ.compiler.native_entry.plan import CallSite, Routine, Slot, bytes_of, is_handle, nbytes, put, special_name
from occ.runtime.attributes import decode_attrs
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Buffer, Function, Manifest, Step, TensorInfo
from occ.runtime.native.call import MOST_AXES

_NAMED = 5  # problems that an error lists
_KINDS = ("kernel", "copy", "if", "scan", "loop")
# Optional operands of a step, by its kind, or by its name if that is `host`.
_OPTIONAL = {"loop": range(2), "NonMaxSuppression": range(2, 5)}
_PARTIAL = ("Unique",)  # may lack results


_BODIES = {"if": ("then_branch", "else_branch"), **dict.fromkeys(("loop", "scan", "map"), ("body",))}


class Unsuitable(Exception):
    """A plan needs something that compiled code does not support; the text lists it, with the nodes."""


def routines(m: Manifest) -> list[Routine]:
    """The routines of a model, callees before callers.

    Raises:
        Unsuitable: it cannot have an entry.
    """
    made, problems = _read(m)
    if problems:
        raise Unsuitable(_listed("this model has no native entry", problems))
    return made


def without_host(m: Manifest) -> str:
    """Why programs without Python cannot run a model; empty if they can."""
    found = host_steps(m)
    return _listed("only Python can run this model", found) if found else ""


def host_steps(m: Manifest) -> list[str]:
    """The parts of a model that need Python, node by node; empty if compiled code does all of it."""
    made, problems = _read(m)
    found = [f"node `{_nodes(r.plan.steps[k])}` {why}" for r in made for k, why in r.host.items()]
    shown = dict.fromkeys(i.name for i in (*m.outputs, *m.inputs) if i.dtype == "str")
    found += [f"`{name}` is of texts" for name in shown]
    cased = {k for r in made if r.is_main for k in r.cases}
    kinds = [(i, k in cased) for k, i in enumerate((*m.outputs, *m.inputs))]
    found += [f"`{i.name}` is of kind {i.kind}" for i, known in kinds if i.kind != "tensor" and not known]
    return [*problems, *dict.fromkeys(found)]


def _check_type(step: Step, dtype: str) -> None:
    if dtype not in TYPES.get(step.name, (dtype,)):
        raise Unsuitable(f"is a {step.name} of {dtype}")


def _listed(what: str, problems: Sequence[str]) -> str:
    more = len(problems) - _NAMED
    return f"{what}: {'; '.join(problems[:_NAMED])}{f'; and {more} more' if more > 0 else ''}"


def _nodes(step: Step) -> str:
    return ", ".join(step.nodes[:3]) or step.name


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
            return [], [f"no extent of an input determines the size {named}"]
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
        phase = 0
        for k, step in enumerate(f.plan.steps):
            phase += bool(step.binds)
            r.phases.update((found, phase) for _, _, found in step.binds)
            self._step(r, k, step)
        self.done[name] = r
        if self.problems:
            return r
        self._place(r)
        r.symbols = tuple(sorted(_needed(r, self.m) - set(r.bounds)))
        return r

    def _outputs(self, r: Routine) -> None:
        """A storage that only control flow writes may be an output unchanged.

        The first that shows it.
        """
        for k, b in enumerate(r.plan.outputs):
            storage = r.plan.buffers[b].storage
            if r.plan.storages[storage].kind in ("output", "host"):
                r.output_of.setdefault(storage, k)

    def _step(self, r: Routine, k: int, step: Step) -> None:
        before = {f.name: getattr(r, f.name) for f in fields(r)}
        kept = {name: value.copy() for name, value in before.items() if isinstance(value, (dict, list))}
        try:
            self._compiled(r, k, step)
        except Unsuitable as why:
            for name, value in kept.items():
                setattr(r, name, value)
            self._by_host(r, k, step, str(why))

    def _by_host(self, r: Routine, k: int, step: Step, why: str) -> None:
        """Let the host run a step, and functions through their own entries."""
        if step.kind == "kernel":
            self.problems.append(f"node `{_nodes(step)}` {why}")
            return
        r.host[k] = why
        r.bounds.update((name, name) for _, _, name in step.binds)
        for body in _BODIES.get(step.kind, ()):
            name = step.attrs[body]
            self.routine(name, self.m.functions[name]).by_host = True

    def _compiled(self, r: Routine, k: int, step: Step) -> None:
        """Read a step that is compiled.

        Raises:
            Unsuitable: it is not supported.
        """
        used, buffers = [*step.reads, *step.writes], r.plan.buffers
        if step.kind not in _KINDS and step.name not in HOST:
            raise Unsuitable(f"is a step of kind `{step.kind}`{f': {step.name}' if step.name else ''}")
        optional = _OPTIONAL.get(step.name if step.kind == "host" else step.kind, ())
        absent = (-1 in step.writes and step.name not in _PARTIAL) or any(
            b < 0 and k not in optional for k, b in enumerate(step.reads)
        )
        used = [b for b in used if b >= 0]
        handles = any(is_handle(buffers[b]) for b in used)
        if absent or (handles and step.kind in ("kernel", "host")):
            raise Unsuitable("has operands or results that are not plain tensors")
        match step.kind:
            case "kernel":
                pass
            case "copy":
                source, target = buffers[step.reads[0]], buffers[step.writes[0]]
                if (source.shape, source.dtype, source.opaque) != (target.shape, target.dtype, target.opaque):
                    raise Unsuitable("copies to another shape or element type")
            case "if":
                self._if(r, k, step)
            case "loop":
                self._loop(r, k, step)
            case "host":
                _check_type(step, buffers[step.reads[0]].dtype)
                if any(buffers[b].strides for b in used):
                    raise Unsuitable("has operands or results that are not dense")
                # a size that was already known is not bound: the step checks it
                for (_, _, name), most in zip(step.binds, HOST[step.name](step, buffers), strict=False):
                    r.bounds[name] = name if most == LARGEST else upper(most, r.bounds)
                if step.name in SCRATCH:
                    r.scratch[k] = self._slot(r, SCRATCH[step.name](step, buffers), k)
            case _:
                self._scan(r, k, step)

    def _if(self, r: Routine, k: int, step: Step) -> None:
        cond, *captures = (r.plan.buffers[b] for b in step.reads)
        if cond.dtype != "bool":
            raise Unsuitable("has a condition that is not bool")
        cased = self._cased(r, step)
        writes = [None if b in cased else r.plan.buffers[b] for b in step.writes]
        found = {(place, axis) for place, axis, _ in step.binds}
        branches = (step.attrs["then_branch"], step.attrs["else_branch"])
        r.inner[k] = [self._inner(r, name, captures, writes, found) for name in branches]
        for b, output in cased.items():
            place = step.writes.index(b)
            if any(is_handle(self._result(i, place)) for i in r.inner[k]):
                raise Unsuitable("returns results of unknown rank")
            then, other = ([put(d, i.env) for d in self._result(i, place).shape] for i in r.inner[k])
            if max(len(then), len(other)) > MOST_AXES:
                raise Unsuitable(f"returns more than {MOST_AXES} axes")
            left, right = step.attrs["when"]
            sizes = (left, right, *then, *other)
            if any(symbols(e) & r.bounds.keys() for e in sizes) or any(self._decided(i, place) for i in r.inner[k]):
                raise Unsuitable("returns results of data-dependent sizes")
            ranked = not r.plan.buffers[b].opaque
            step = replace(step, binds=[row for row in step.binds if step.writes[row[0]] != b])
            if ranked and len(then) != len(other):
                raise Unsuitable("returns results of different ranks")
            r.cases[output] = Cases((left, right), then, other, ranked)
        for place, axis, name in step.binds:
            ends = [upper(self._result(i, place).shape[axis], self.done[i.name].bounds) for i in r.inner[k]]
            then, other = (put(e, i.env) for e, i in zip(ends, r.inner[k], strict=True))
            r.bounds[name] = upper(["max", then, other], r.bounds)

    def _cased(self, r: Routine, step: Step) -> dict[int, int]:
        """Results of an If with one of two shapes, with the model outputs that they become."""
        if not r.is_main or step.kind != "if" or "when" not in step.attrs:
            return {}
        bound = {step.writes[k] for k, _, _ in step.binds}
        outputs = {b: k for k, b in enumerate(r.plan.outputs) if b in bound or r.plan.buffers[b].opaque}
        alone = {b for b in outputs if r.plan.outputs.count(b) == 1 and step.writes.count(b) == 1}
        kinds = {b: r.function.outputs[k].kind for b, k in outputs.items()}
        texts = {b for b in alone if r.plan.buffers[b].dtype == "str"}
        return {b: outputs[b] for b in step.writes if b in alone - texts and kinds[b] in ("tensor", "unranked")}

    def _result(self, inner: CallSite, place: int) -> Buffer:
        plan = self.m.functions[inner.name].plan
        return plan.buffers[plan.outputs[place]]

    def _decided(self, inner: CallSite, place: int) -> set[int]:
        """The axes with data-dependent extents in a function's result."""
        bounds = self.done[inner.name].bounds.keys()
        return {axis for axis, e in enumerate(self._result(inner, place).shape) if symbols(e) & bounds}

    def _scan(self, r: Routine, k: int, step: Step) -> None:
        if step.binds:
            raise Unsuitable("gathers slices of data-dependent sizes")
        a, reads = decode_attrs(step.attrs), [r.plan.buffers[b] for b in step.reads]
        states, rest = reads[: a.n_states], reads[a.n_states :]
        sequences, captures = rest[: a.num_scan_inputs], rest[a.num_scan_inputs :]
        if any(map(is_handle, sequences)):
            raise Unsuitable("scans a value that is not a plain tensor")
        if any((*(a.scan_input_axes or ()), *(a.scan_output_axes or ()))) or not sequences:
            raise Unsuitable("scans along an axis other than the first")  # whose slices are not contiguous
        self._iterations(r, k, step, states, [*states, *map(_slice, sequences), *captures], [])

    def _loop(self, r: Routine, k: int, step: Step) -> None:
        a = decode_attrs(step.attrs)
        reads = [None if b < 0 else r.plan.buffers[b] for b in step.reads]
        for b, dtype in zip(reads, ("i64", "bool"), strict=False):
            if b is not None and (b.dtype != dtype or b.shape not in ([], [1])):
                raise Unsuitable(f"has {b.dtype}{b.shape} where it takes one {dtype}")
        for place, axis, name in step.binds:
            if axis or place < a.n_carried:
                raise Unsuitable("returns results of data-dependent extents")
            r.bounds[name] = upper(step.attrs["upper_bounds"][0], r.bounds) if "upper_bounds" in step.attrs else name
        given = [b for b in reads[2:] if b is not None]
        going = Buffer("bool", [], -1)
        self._iterations(r, k, step, given[: a.n_carried], [Buffer("i64", [], -1), going, *given], [going])
        r.double_buffers[k] += [self._slot(r, size, k) for size in (8, 1, 1)]

    def _iterations(
        self, r: Routine, k: int, step: Step, states: Sequence[Buffer], given: Sequence[Buffer],
        first: Sequence[Buffer],
    ) -> None:  # fmt: skip
        """The common part of Scan and Loop: a body over states that adds a slice to each scanned result.

        Args:
            r, k, step: the step of a routine.
            states: initial values.
            given: arguments of the body.
            first: its results before the states.
        """
        writes = [r.plan.buffers[b] for b in step.writes]
        if any(_kind(s) != _kind(w) for s, w in zip(states, writes, strict=False)):
            raise Unsuitable("has states that change their shape")
        if any(map(is_handle, writes[len(states) :])):
            raise Unsuitable("gathers values that are not plain tensors")
        slices = [_slice(b) for b in writes[len(states) :]]
        r.inner[k] = [self._inner(r, decode_attrs(step.attrs).body, given, [*first, *writes[: len(states)], *slices])]
        sizes = [bytes_of(s) for s in states for _ in range(2)]
        r.double_buffers[k] = [self._slot(r, size, k) for size in sizes]
        r.staging[k] = [None if is_aligned(b) else self._slot(r, nbytes(b.shape, b.dtype), k) for b in slices]

    def _slot(self, r: Routine, size: DimExpr, step: int) -> int:
        size = upper(size, r.bounds)
        r.slots.append(Slot(size, step, step, r.phase_of(size)))
        return len(r.slots) - 1

    def _inner(
        self, r: Routine, name: str, given: Sequence[Buffer], writes: Sequence[Buffer | None],
        found: Collection[tuple[int, int]] = (),
    ) -> CallSite:  # fmt: skip
        """A function on operands.

        `writes` are None if any shape is allowed, and `found` axes of results whose extents the function reports.
        """
        f = self.m.functions[name]
        self.routine(name, f)
        takes, made = ([f.plan.buffers[b] for b in row] for row in (f.plan.inputs, f.plan.outputs))
        fits = len(takes) == len(given) and len(made) == len(writes)
        fits = fits and all(_rank(a) == _rank(b) for a, b in zip(takes, given, strict=True))
        fits = fits and all(b.opaque or len(i.shape) == len(b.shape) for i, b in zip(f.inputs, given, strict=True))
        fits = fits and all(b is None or _rank(a) == _rank(b) for a, b in zip(made, writes, strict=True))
        if not fits:
            raise Unsuitable(f"runs the function `{name}` on shapes that it does not accept")
        shapes = [b.shape for b in given]
        inner = CallSite(name, {s: s for s in self.done[name].symbols} | _bound(f.inputs, shapes))
        decided = {(place, axis) for place in range(len(made)) for axis in self._decided(inner, place)}
        known = set(r.bounds) | {s for shape in shapes for e in shape for s in symbols(e)}
        open_ = {s for b in made for e in b.shape for s in symbols(e)} & self.done[name].open
        if open_ or not decided <= set(found) or known & set(self.done[name].returned_sizes):
            raise Unsuitable("returns results of data-dependent sizes")
        return inner

    def _place(self, r: Routine) -> None:
        """Assign a slot to buffers outside of the caller's memory, for as long as steps use them."""
        end = len(r.plan.steps)
        touched: dict[int, list[int]] = {}
        for k, step in enumerate(r.plan.steps):
            for b in (b for b in (*step.reads, *step.writes, step.flag) if b >= 0):
                touched.setdefault(r.plan.buffers[b].storage, []).append(k)
        for b in r.plan.outputs:
            touched.setdefault(r.plan.buffers[b].storage, []).append(end)
        early = written_before_sized(r)
        for k in early:
            del r.output_of[k]
        for k, at in touched.items():
            s = r.plan.storages[k]
            if k in r.output_of or (s.kind not in ("arena", "host") and k not in early):
                continue
            size = early.get(k, s.size)
            if s.kind == "host":
                size = bytes_of(next(b for b in r.plan.buffers if b.storage == k))
            size = upper(size, r.bounds)
            r.slot_of[k] = len(r.slots)
            r.slots.append(Slot(size, min(at), max(at), r.phase_of(size)))
        handles: dict[int, set[bool]] = {}
        for b in r.plan.buffers:
            handles.setdefault(b.storage, set()).add(is_handle(b))
        for k in touched:
            seen = handles.get(k, set())
            if len(seen) > 1 or (True in seen and r.plan.storages[k].kind not in ("host", "input")):
                self.problems.append(f"storage {k} of `{r.name}` is a tensor and a value of the host")


def _slice(b: Buffer) -> Buffer:
    """A tensor whose slices along the first axis another one holds."""
    return Buffer(b.dtype, b.shape[1:], b.storage)


def _kind(b: Buffer) -> tuple[object, ...]:
    return b.dtype, b.opaque, b.shape


def _rank(b: Buffer) -> tuple[object, ...]:
    return b.dtype, b.opaque, len(b.shape)


def _bound(infos: Sequence[TensorInfo], shapes: Sequence[Sequence[DimExpr]]) -> dict[str, DimExpr]:
    """The dims that the shapes of inputs bind, as expressions."""
    return {
        e: n for info, shape in zip(infos, shapes, strict=True) for e, n in zip(info.shape, shape, strict=True)
        if isinstance(e, str)
    }  # fmt: skip


def _needed(r: Routine, m: Manifest) -> set[str]:
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
    return {name for e in exprs for name in symbols(e)} | {name for k in r.host for name in _given(r.plan.steps[k], m)}


def _given(step: Step, m: Manifest) -> set[str]:
    """Sizes that functions run by the host take from their caller: no argument shows them."""
    found: set[str] = set()
    for f in (m.functions[step.attrs[body]] for body in _BODIES.get(step.kind, ())):
        shown = {e for i in f.inputs if i.kind == "tensor" for e in i.shape if isinstance(e, str)}
        own = {row[2] for s in f.plan.steps for row in s.binds}
        exprs = [e for b in f.plan.buffers for e in b.shape]
        exprs += [e for s in f.plan.steps for e in s.dims]
        found |= {s for e in exprs for s in symbols(e)} - shown - own
        found |= {s for inner in f.plan.steps for s in _given(inner, m)} - shown - own
    return found
