"""The part of a model that computes each item of a batch from that item alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.build_te import build_te, parameters
from occ.compiler.ir.builder import OPERATOR_FAILURES, GraphBuilder, infer_results
from occ.compiler.ir.dim import Dim, Sym, exact_quotient, substitute, symbols
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.func import Func
from occ.compiler.ir.liveness import data_symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Attr, FuncRef, Op, Region, Value, Weight
from occ.compiler.ir.ops.attention import reshape
from occ.compiler.ir.rewriter import Rewriter, unlink
from occ.compiler.ir.shape import Assumed, collecting
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.types import TensorType, Type
from occ.compiler.passes.te.per_item import is_per_item


class PerItemPart:
    """Ops that act on each item of a batch alone, copied for any number of items.

    Args:
        m: the model, which stays unchanged until `slice`.
        batch: the first extent of the inputs that have items: a number or a symbol.

    Attributes:
        sources: the ops, in order; what they read is computed by earlier ones, or without the batch.
        copies: the same ops on `items` items, a symbol.
    """

    def __init__(self, m: Module, batch: Dim) -> None:
        self.m, self.batch = m, batch
        self.items = m.fresh_symbol("items", 1)
        self.sources: list[Op] = []
        self.copies: list[Op] = []
        self._env: dict[str, Dim] = {str(batch): self.items} if isinstance(batch, Sym) else {}
        self._region = Region()
        self._copy_of: dict[Value, Value] = {}
        self._dependent: set[Value] = set()  # on the batch, by ops that are not in the part
        self._sizes: set[str] = set()  # of such values, and those that such ops find in a run
        for arg in m.main.args:
            if (t := self._of_items(arg.type)) is not None:
                self._copy_of[arg] = self._region.add_arg(t, arg.name)
        self._args = list(self._copy_of)
        for op in m.main.body.body:
            self._take(op)

    def crossing(self) -> Iterator[list[Value]]:
        """For each of `sources`, the values that ops after it read, of it and those before it."""
        live: dict[Value, set[Op]] = {}
        for op in self.sources:
            live |= {r: {*r.users} for r in op.results}
            for v in op.inputs:
                if v in live:
                    live[v].discard(op)
            yield [v for v, users in live.items() if users]

    def drop(self) -> None:
        """Forget the copies."""
        for op in self._region:
            unlink(op)
        del self.m.symbols[str(self.items)]

    def slice(self, size: int, count: int) -> None:
        """Replace ops of the model by a Scan over slices of the batch.

        Args:
            size: items of a slice, a divisor of the batch.
            count: how many of `sources`, from the first one on.
        """
        rw, home, inside = Rewriter(self.m), self.m.main.body, set(self.sources[:count])
        results = [r for op in self.sources[:count] for r in op.results if any(u not in inside for u in r.users)]
        following = next(op for op in home if self._follows(op))
        rw.move([op for op in home.body if not self._follows(op)], home, following)
        self._keep(count)
        scanned = [v for v in self._args if self._copy_of[v].uses]
        self._region.args[:] = [self._copy_of[v] for v in scanned]
        captured = self._capture(rw)
        self._region.close([self._copy_of[r] for r in results])
        name = self.m.unused_func("slice")
        self.m.funcs[name] = Func(name, self._region, [])
        slices = exact_quotient(self.batch, size)
        assert slices is not None, f"{self.batch} is not a multiple of {size}"
        b = GraphBuilder(home, following, following.loc, self.m)
        given = [reshape(b, v, (slices, size, *v.tensor.dims[1:])) for v in scanned]
        types = [r.tensor.with_shape((slices, size, *r.tensor.dims[1:])) for r in results]
        attrs = {"num_scan_inputs": len(given), "body": FuncRef(name), "captures": len(captured)}
        names = [r.name for r in results]
        scan = Op("Scan", [*given, *captured], attrs, types, result_names=names, loc=following.loc)
        home.insert(scan, following)
        for old, new in zip(results, scan.results, strict=True):
            whole = reshape(b, new, old.tensor.dims)
            old.replace_uses(whole, outside=inside)
            whole.name = old.name
        for op in reversed(self.sources[:count]):
            rw.erase(op)
        self.m.drop_unused_weights()
        self.m.substitute({str(self.items): size})

    def _keep(self, count: int) -> None:
        """Remove the copies after the first ones, and sizes that only they read."""
        last = {*self.copies[count:]}
        for op in reversed(self._region):
            if op in last or (op.is_dims and not op.result.uses):
                unlink(op)
                self._region.remove(op)

    def _capture(self, rw: Rewriter) -> list[Value]:
        """Outer values that the copies read; they become arguments."""
        inner = {*self._region.args, *(r for op in self._region for r in op.results)}
        outer = dict.fromkeys(v for op in self._region for v in op.inputs if v not in inner)
        captured = [v for v in outer if not isinstance(v, Weight)]
        given: dict[Value, Value | None] = {v: self._region.add_arg(v.type, v.name) for v in captured}
        for op in self._region:
            rw.map_operands(op, given)
        return captured

    def _follows(self, op: Op) -> bool:
        """Whether an op reads the batch, or a value that depends on it."""
        return op.next is None or any(r in self._dependent or r in self._copy_of for r in op.results)

    def _take(self, op: Op) -> None:
        """Copy an op if it acts on each item alone."""
        sizes = {s for o in (op, *(o for r in op.regions for o in r.walk())) for s in data_symbols(o)}
        if any(v in self._dependent for v in op.inputs) or sizes & self._sizes:
            self._depend(op, sizes)
        elif any(v in self._copy_of for v in op.inputs):
            made = self._copied(op, shape=False) or self._copied(op, shape=True)
            if made is None:
                self._depend(op, sizes)
                return
            self._copy_of.update(zip(op.results, made.results, strict=True))
            self.sources.append(op)
            self.copies.append(made)

    def _depend(self, op: Op, sizes: Iterable[str]) -> None:
        self._dependent.update(op.results)
        self._sizes.update(sizes)

    def _copied(self, op: Op, *, shape: bool) -> Op | None:
        """A copy for any number of items; None if it would not act on each item alone.

        Args:
            op: the op.
            shape: whether a constant shape that starts with the batch starts with the number of items instead.
        """
        if op.spec.body is None or op.regions or not op.spec.pure:
            return None
        last = self._region.last
        names, attrs = [r.name for r in op.results], _put(op.attrs, self._env)
        unknown = [None] * len(op.results)
        made = Op(op.operator, self._operands(op, shape), attrs, unknown, result_names=names, loc=op.loc)
        if self._settle(made, [self._of_items(r.type) for r in op.results]):
            return self._region.insert(made)
        unlink(made)
        while self._region.last is not None and self._region.last is not last:
            self._region.remove(self._region.last)  # sizes for the copy
        return None

    def _settle(self, made: Op, wanted: Sequence[Type | None]) -> bool:
        """Infer the types of a copy; returns whether they are those wanted, and it acts on each item alone."""
        assumed: list[Assumed] = []
        try:
            with collecting(assumed):
                found = infer_results(made)
            for r, t in zip(made.results, found, strict=True):
                r.type = t
            if list(found) != list(wanted) or any(str(self.items) in symbols(p.a, p.b) for p in assumed):
                return False
            if any(self._names_batch(v) for v in made.inputs):
                return False
            if "view" in made.spec.tags:
                return True  # it keeps the order of elements, so with the first extent it keeps items
            f = _te(made)
        except (Invalid, *OPERATOR_FAILURES):
            return False
        return is_per_item(f, self.items) and not self._loads_sizes(made, f)

    def _operands(self, op: Op, shape: bool) -> Iterator[Value | None]:
        for k, v in enumerate(op.operands):
            maker = v.defining_op if v is not None else None
            if v is None or v in self._copy_of:
                yield v and self._copy_of[v]
            elif maker is not None and maker.is_dims and op.spec.operand_name(k) in op.spec.static:
                yield self._region.insert(
                    Op(maker.operator, (), _put(maker.attrs, self._env), [v.type], result_names=[v.name], loc=maker.loc)
                ).result
            elif (
                shape
                and op.spec.operand_name(k) in op.spec.static
                and (sizes := _constant_sizes(v))[:1] == [self.batch]
            ):
                b = GraphBuilder(self._region, None, op.loc, self.m)
                yield b.dims(values=(self.items, *sizes[1:]), shape=(len(sizes),))
            else:
                yield v

    def _loads_sizes(self, made: Op, f: TeFunc) -> bool:
        """Whether a copy computes with a size of the slice, where the op computes with one of the batch."""
        loaded = {p.name for p in f.params}
        return any(
            name in loaded
            and (d := v.defining_op) is not None
            and d.is_dims
            and str(self.items) in symbols(*d.attrs["values"])
            for name, v in parameters(dict.fromkeys(made.inputs), [made]).items()
        )

    def _names_batch(self, v: Value) -> bool:
        """Whether a value has the batch as an extent, although it is none of the copies."""
        return (
            isinstance(v.type, TensorType)
            and v.type.shape is not None
            and bool(self._env.keys() & symbols(*v.type.dims))
        )

    def _of_items(self, t: Type | None) -> Type | None:
        """The type of a value with items; None if it has none, or the batch is also another extent."""
        if not isinstance(t, TensorType) or not t.shape or t.dims[0] != self.batch:
            return None
        return None if self._env.keys() & symbols(*t.dims[1:]) else t.with_shape((self.items, *t.dims[1:]))


def _te(op: Op) -> TeFunc:
    return build_te(op.name, [op], list(dict.fromkeys(op.inputs)), op.results)


def _constant_sizes(v: Value) -> list[int]:
    """The elements of a constant that may be a shape; none of others."""
    return v.data.tolist() if isinstance(v, Weight) and v.tensor.dtype == I64 and v.data.ndim == 1 else []


def _put(attrs: Mapping[str, Attr], env: Mapping[str, Dim]) -> dict[str, Attr]:
    """Attributes with other sizes."""
    return {
        k: tuple(substitute(d, env) if isinstance(d, Sym) else d for d in v) if isinstance(v, tuple) else v
        for k, v in attrs.items()
    }
