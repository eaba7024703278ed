"""Type and shape inference, to a fixpoint."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from occ.compiler.diagnostics import Diagnostic, Invalid, Unresolved, shorten
from occ.compiler.interp.quotient import without_quotients
from occ.compiler.interp.symbolic import elements
from occ.compiler.ir import dim
from occ.compiler.ir.build_te import LARGEST_KNOWN, Elements, build_te, parameters, static_elements
from occ.compiler.ir.builder import OPERATOR_FAILURES
from occ.compiler.ir.deferred import deferred_types, has_unknown_rank, result_types
from occ.compiler.ir.dim import Dim, Sym
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.func import Constraint, Func
from occ.compiler.ir.liveness import defined_sizes
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value
from occ.compiler.ir.ops.own.data_dependent_sizes import DECIDED
from occ.compiler.ir.printer import op_text
from occ.compiler.ir.rewriter import Rewriter, drop_undefined_sizes
from occ.compiler.ir.shape import Assumed, collecting, is_placeholder
from occ.compiler.ir.types import TensorType, Type
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.infer.broadcasts import note_broadcasts
from occ.compiler.passes.infer.checks import (
    check_extents,
    check_form,
    check_operands,
    check_ranks,
    check_sizes,
    check_types,
    no_result,
)
from occ.compiler.passes.infer.data_dependent_shapes import decide, resolve_broadcasts
from occ.compiler.passes.infer.infer_control import infer_control, inline_branch
from occ.compiler.passes.infer.input_ranks import find_ranks
from occ.compiler.passes.infer.sequences_to_tensors import sequences_to_tensors
from occ.compiler.passes.infer.show_sizes import show_sizes
from occ.compiler.passes.infer.size_bounds import set_size_bounds
from occ.compiler.passes.infer.solve import solve
from occ.compiler.passes.infer.split_on_rank import set_shape_conditions, split_cases
from occ.compiler.passes.infer.unify_ranks import unify_ranks
from occ.runtime.dataclass import dataclass

_CASES = 32  # rounds of splitting on sizes that decide ranks
_STEPS = (
    sequences_to_tensors,
    unify_ranks,
    decide,
    resolve_broadcasts,
)  # of resolving shapes, each starting from the result of the one before
_SCALES = 16  # elements of float vectors whose values are tracked; the region of a Resize of rank 8 has this many
_ROUNDS = 8  # of substituting assumed equalities; each round eliminates at least one symbol


@dataclass(frozen=True)
class Infer(Pass):
    """Infers the type of every value, and resolves shape tensors to constants and dims.

    `%s = Shape(%x)  %g = Gather(%s, 0)  %y = Reshape(%x, Concat(%g, -1))` --> `%y = Reshape(%x, dims(N, 3*H*W))`
    """

    sizes: bool = True  # turn values that decide shapes into sizes
    grow: bool = True  # make constants of known values that are larger than their operands, such as ranges

    name: ClassVar[str] = "infer"

    def run(self, m: Module, ctx: Context) -> bool:
        find_ranks(m)
        check_ranks(m, ctx)
        untyped = any(r.type is None for op in m.walk() for r in op.results)
        inference, cases = _settled(m, ctx, []), set[str]()
        for _ in range(_CASES):
            needed = split_cases(inference, m, cases)
            if needed is None:
                ctx.sink.raise_errors()
                if not self.sizes or not any(step(m, inference) for step in _STEPS):
                    break
                _forget_types(m)
                needed = []
            inference = _settled(m, ctx, needed)
        ctx.sink.raise_errors()
        drop_undefined_sizes(m)
        show_sizes(m)
        set_shape_conditions(inference, m)
        set_size_bounds(m, inference)
        return inference.materialise(self.grow) > 0 or untyped


def _settled(m: Module, ctx: Context, needed: Sequence[Constraint]) -> _Inference:
    """The state of inference after unifying sizes that must be equal; `needed` holds too."""
    inference = _Inference(m, ctx)
    inference.region(m.main.body)
    inference.assumed += needed
    for _ in range(_ROUNDS):
        if not inference.substitute():
            break
        inference = _Inference(m, ctx)
        inference.region(m.main.body)
    return inference


def _forget_types(m: Module) -> None:
    """Forget the types of functions' parameters and results, which may have been less precise.

    Other ops find theirs again, with data-dependent sizes under the names that `sizes` uses by then.
    """
    for func in m.funcs.values():
        results = (r for op in func.body.walk() if "control" in op.spec.tags for r in op.results)
        for value in [*(() if func is m.main else func.args), *results]:
            value.type = None


class _Inference:
    """One sweep over the module."""

    def __init__(self, m: Module, ctx: Context) -> None:
        self.m, self.ctx = m, ctx
        self.known: dict[Value, Any] = {}  # elements, and quotients of sizes
        self.assumed: list[Constraint] = []
        self._func = "main"  # the current function
        self._branches: list[str] = []  # enclosing optional functions: an error inside is one only if it is taken
        self.impossible: set[str] = set()  # of these, those that contain an error

    def region(self, region: Region) -> None:
        for op in region:
            self._visit(op)

    def _visit(self, op: Op) -> None:
        if op.name == "If" and (taken := self._decided(op)) is not None:
            for inner in inline_branch(self.m, op, taken):
                self._visit(inner)
        elif not op.is_terminator:
            self.op(op)

    def _decided(self, op: Op) -> str | None:
        """The branch that a known condition takes."""
        found = self.elements(op.operands[0]) if op.operands[0] is not None and op.operands[0].type else None
        if not found or len(found) != 1 or not isinstance(found[0], (bool, int)):
            return None
        return "then_branch" if found[0] else "else_branch"

    def op(self, op: Op) -> None:
        if op.name == "deferred":
            return
        for inner in op.regions:
            self.region(inner)
        if any(v.type is None for v in op.inputs):
            return  # its operand has been reported
        pairs = self._found(op)
        try:
            check_form(op)
            check_sizes(op, [v.type for v in op.inputs])
            check_types(op)
            with collecting(pairs):
                check_operands(op)
                types = self._result_types(op)
            check_extents(op, types)
            check_sizes(op, types)
        except OPERATOR_FAILURES as e:
            self._report(op, no_result(op, e))
            return
        except Invalid as e:
            self.impossible.update(self._branches[-1:])
            if not self._branches or (types := _untyped(op)) is None:
                self._report(op, e)
                return
        note_broadcasts(self.m, op, pairs)
        self.assumed += [Constraint(a, b, str(op.loc), self._func) for a, b, _ in pairs]
        self._settle(op, types)
        self._assume_extents(op)
        try:
            with collecting([]):  # its types are unchanged, for its own function
                self._propagate(op)
        except OPERATOR_FAILURES as e:
            self._report(op, no_result(op, e))

    def _found(self, op: Op) -> list[Assumed]:
        """Sizes that a step would compute, but that are known by now."""
        known = self.elements(op.operands[0]) if op.name == DECIDED and op.operands[0] is not None else None
        pairs = zip(op.attrs["defines"], known, strict=True) if known else ()
        return [Assumed(a, b) for a, b in pairs if isinstance(b, (int, Sym)) and a != b]

    def _result_types(self, op: Op) -> Sequence[Type | None]:
        if "control" in op.spec.tags:
            return infer_control(self, op)
        if has_unknown_rank(op) and not op.spec.host:
            return deferred_types(op)
        return result_types(op, self.elements)

    def _settle(self, op: Op, types: Sequence[Type | None]) -> None:
        """Type the results; each data-dependent extent gets a symbol, the same as in an earlier inference."""
        values: dict[str, Dim] = {}
        for value, type_ in zip(op.results, types, strict=True):
            stated = value.type.shape if isinstance(value.type, TensorType) else None
            found = type_.shape if isinstance(type_, TensorType) else None
            for k, d in enumerate(found or ()):
                if is_placeholder(d) and str(d) not in values:
                    known = stated is not None and found is not None and len(stated) == len(found)
                    values[str(d)] = stated[k] if known and stated else self._data_symbol()
        for value, type_ in zip(op.results, types, strict=True):
            value.type = type_.substituted(values) if isinstance(type_, TensorType) else type_

    def _assume_extents(self, op: Op) -> None:
        """Extents are sizes: if one cannot be proved non-negative, as after a window, the runtime checks it."""
        for r in op.results:
            for d in (r.type.shape or ()) if isinstance(r.type, TensorType) else ():
                if not isinstance(d, int) and dim.lower(d) < 0:
                    self.assumed.append(Constraint(dim.maximum(d, 0), d, str(op.loc), self._func))

    def _data_symbol(self) -> Dim:
        return self.m.data_symbol()

    # functions that ops run

    def function(
        self, func: Func, types: Sequence[Type | None], values: Sequence[Elements | None], *, optional: bool = False
    ) -> list[Type | None]:
        """Infer a function; see `infer_control`."""
        if len(types) != len(func.args):
            raise Invalid(f"`{func.name}` takes {len(func.args)} values, but gets {len(types)}")
        for arg, type_, found in zip(func.args, types, values, strict=True):
            arg.type = type_
            self.known.pop(arg, None)
            if found is not None and len(found) <= LARGEST_KNOWN:
                self.known[arg] = found
        caller, self._func = self._func, func.name
        around = self._branches
        self._branches = [*around, func.name] if optional else around
        self.region(func.body)
        self._branches, self._func = around, caller
        return [v.type for v in func.results]

    @property
    def mark(self) -> int:
        return len(self.assumed)

    def forget(self, func: Func, mark: int) -> None:
        """Drop what a tentative inference of a function recorded."""
        del self.assumed[mark:]
        for value in [*func.args, *(r for op in func.body.walk() for r in op.results)]:
            self.known.pop(value, None)
        for op in func.body.walk():
            for r in op.results:
                r.type = None

    def elements(self, value: Value) -> Elements | None:
        """The known elements of a value."""
        return without_quotients(self._evaluated(value))

    def _evaluated(self, value: Value) -> Any:
        return self.known[value] if value in self.known else static_elements(value)

    def _propagate(self, op: Op) -> None:
        """Evaluate an op on known elements if its results are small."""
        results = [r for r in op.results if _is_small(r.type)]
        if not results or op.spec.body is None or op.is_dims:  # `static_elements` has those
            return
        tensors = [v for v in op.inputs if isinstance(v.type, TensorType)]
        if any(v.tensor.shape is None for v in tensors):
            return
        if "shape" not in op.spec.tags and all(self._evaluated(v) is None for v in tensors):
            return
        if any(v.tensor.dtype.is_float and _is_data(v) for v in results) and op.name != "Concat":
            return  # only shape arithmetic and per-axis scales pass through floats
        try:
            f = build_te("shape", [op], tensors, results, self.elements)
        except Unresolved:
            return
        order = parameters(tensors, [op])
        found = elements(f, [self._evaluated(order[p.name]) for p in f.params])
        self.known |= {
            v: e for v, e in zip(results, found, strict=True) if e is not None and any(x is not None for x in e)
        }

    def substitute(self) -> bool:
        """Replace symbols by what they are assumed equal to; returns whether anything changed."""
        values: dict[str, Dim] = {}
        rest: list[Constraint] = []
        told = {name: defined_sizes(f) for name, f in self.m.funcs.items()}
        own = {size for f in self.m.funcs.values() if f is not self.m.main for size in told[f.name]}
        for c in self.assumed:
            a, b = dim.substitute(c.lhs, values), dim.substitute(c.rhs, values)
            if a == b:
                continue
            found = solve(a, b, told[c.func])
            if c.func != "main" and not _is_own(found, own):
                found = None  # an assumption of a function need not hold if the function is not run
            if found is None:
                rest.append(replace(c, lhs=a, rhs=b))
            else:
                values = {k: dim.substitute(v, found) for k, v in values.items()} | found
        if values:  # the next round finds the bounds again, if equal sizes leave any
            rest = [c for c in rest if not _is_bound(c)]
        known = {(str(c.lhs), str(c.rhs), c.func) for c in self.m.constraints}
        new = {(str(c.lhs), str(c.rhs), c.func): c for c in reversed(rest)}  # the first node that needs it
        self.m.constraints += [c for key, c in reversed(new.items()) if key not in known]
        if values:
            self.m.substitute(values)
        return bool(values)

    def materialise(self, grow: bool) -> int:
        """Replace values whose elements are all known by constants and `dims` ops; returns how many."""
        rw = Rewriter(self.m)
        made, kept = 0, set[Value]()
        for value in self.known:
            op, found = value.defining_op, self.elements(value) or ()
            if not grow and op is not None and _grows(op, len(found), kept):
                kept.add(value)
                continue
            if not value.uses or any(x is None for x in found) or (op is not None and op.is_dims):
                continue
            if op is None and not isinstance(value.owner, Region):
                continue  # a constant
            if len(found) > _MOST_SIZES and any(isinstance(x, Sym) for x in found):
                continue
            value.replace_uses(self._known_value(rw, value, found))
            made += 1
        return made

    def _known_value(self, rw: Rewriter, value: Value, found: Elements) -> Value:
        type_ = value.tensor
        if not any(isinstance(x, Sym) for x in found):
            return self.m.add_weight(value.name, np.asarray(found, type_.dtype.numpy).reshape(type_.static))
        op = value.defining_op
        anchor = op.next if op is not None else value.owner.first if isinstance(value.owner, Region) else None
        assert anchor is not None
        attrs: dict[str, Any] = {} if type_.dtype == I64 else {"dtype": type_.dtype}
        return rw.builder(anchor).op("dims", values=found, shape=type_.dims, **attrs)

    def _report(self, op: Op, e: Invalid) -> None:
        where = f"{shorten(self.ctx.source or self.m.name)}: {shorten(str(op.loc))}"
        notes = [f"`{shorten(v.name, 60)}` is {v.type}" for v in dict.fromkeys(op.inputs[:4])]
        notes = [e.note, *notes] if e.note else notes
        source = shorten(op_text(op), 400)
        self.ctx.sink.add(Diagnostic(e.code, str(e), where, source, tuple(notes), (e.help,) if e.help else ()))


_MOST_SIZES = 64  # of a `dims` op, which compares a position with each of them; more than any shape has


def _grows(op: Op, count: int, kept: Container[Value]) -> bool:
    """Whether the result has more than `count` elements, and more than its operands."""
    if op.name == "Shape" or count == 1:
        return False
    types = [v.type for v in op.inputs if isinstance(v.type, TensorType) and v.type.shape is not None]
    return any(v in kept for v in op.inputs) or count > sum(t.size for t in types if isinstance(t.size, int))


def _is_own(found: Mapping[str, Dim] | None, told: Container[str]) -> bool:
    """Whether the substitution only rewrites sizes that steps define, in terms of other such sizes or constants."""
    return found is not None and all(
        name in told and (isinstance(d, int) or (d.is_symbol and str(d) in told and str(d) != name))
        for name, d in found.items()
    )


def _is_bound(c: Constraint) -> bool:
    """Whether a constraint states a lower bound of a size: `max(1, N) == N`."""
    parts = dim.terms_of(c.lhs)
    atoms = [a for mono, _ in parts for a, _ in mono]
    return (
        len(parts) == len(atoms) == 1
        and isinstance(atoms[0], dim.Func)
        and atoms[0].name == "max"
        and c.rhs in atoms[0].args
    )


def _untyped(op: Op) -> Sequence[Type] | None:
    """Types of unknown rank, which make an op deferred; None where even the element types are unknown."""
    try:
        return [TensorType(t.dtype, None) for t in deferred_types(op)]
    except Invalid:
        return None


def _is_data(value: Value) -> bool:
    """Whether a tensor has more elements than the scales or region of a Resize."""
    return not isinstance(value.tensor.size, int) or value.tensor.size > _SCALES


def _is_small(type_: Type | None) -> bool:
    if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype.kind not in "iubf":
        return False
    return isinstance(type_.size, int) and type_.size <= LARGEST_KNOWN and type_.rank <= 2
