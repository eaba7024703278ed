"""te functions and schedules as Halide generators: one readable class each, algorithm first, then schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite

from occ.compiler.codegen_halide.expressions import Printer, half_text
from occ.compiler.codegen_halide.literals import cpp_type, dim_text, is_counted, literal_text
from occ.compiler.diagnostics import shorten
from occ.compiler.ir.dim import Sym
from occ.compiler.ir.dtype import F16
from occ.compiler.ir.te.expr import PREDICATES, Axis, Binary, Call, Const, Expr, Index, Load, Reduce, Select, wrap
from occ.compiler.ir.te.function import AnyStage, Param, Scatter, TeFunc, TeStage, product_in_pairs, reduce_axes
from occ.compiler.ir.te.index import axis_symbols, clamped_below
from occ.compiler.ir.te.piecewise import along, parts
from occ.compiler.ir.te.reductions import neutral
from occ.compiler.ir.te.roles import SUM_BLOCK, facts_of_role
from occ.compiler.ir.te.scatter_rows import passed_on, place_before, running
from occ.compiler.ir.te.schedule import TAILS, Arg, AtMost, Directive
from occ.compiler.ir.te.walks import transform, walk


def comment(text: str) -> str:
    """Text from a model as a line comment that it cannot end or continue."""
    clean = shorten(text, 160).encode("ascii", "backslashreplace").decode()
    return f"// {clean}".replace("\\", "/").replace("??/", "?/")


def generator(f: TeFunc, nodes: Sequence[str] = (), *, halves_in_f32: bool = False) -> str:
    """The C++ class of a te function, registered under its name.

    `halves_in_f32` is for processors without f16 conversion.
    """
    return _Generator(f, nodes, halves_in_f32).text()


def _meets_infinities(e: Expr) -> bool:
    """Whether an expression produces infinities or NaNs, or tests for them."""
    match e:
        case Const():
            return e.dtype.is_float and not isfinite(e.value.real)
        case Call():
            return e.fn in ("isnan", "isinf")
        case Binary():
            return e.dtype.is_float and e.op in ("mod", "rem")
        case _:
            return False


def _is_product(s: TeStage) -> bool:
    return isinstance(s.expr, Reduce) and s.expr.kind == "sum" and isinstance(t := _term(s), Binary) and t.op == "mul"


def _term(s: TeStage) -> Expr:
    """The term of a reduction; in a block of a long sum, only where there are terms."""
    assert isinstance(s.expr, Reduce)
    body = s.expr.body
    return body.then if s.role == SUM_BLOCK and isinstance(body, Select) else body


def _asks(e: Expr) -> bool:
    return isinstance(e, Call) and e.fn in PREDICATES


def _read(exprs: Iterable[Expr]) -> set[str]:
    """The sources that expressions load from."""
    return {n.source for e in exprs for n in walk(e) if isinstance(n, Load)}


def _stored(f: TeFunc) -> set[str]:
    """Stages computed into memory."""
    return {r.name for r in f.results} | {d.stage for d in f.schedule if d.call in ("compute_at", "compute_root")}


def _untested_sums(f: TeFunc) -> set[str]:
    """Sums of products, and of vector lanes, whose value is not tested before it is stored.

    Fast-math lets LLVM draw conclusions about a value, not compute another one, so these may keep fused multiply-add.
    Maps in between are inlined into the stage that is stored.
    """
    stored = _stored(f)
    readers: dict[str, list[AnyStage]] = {}
    for s in f.stages:
        for name in _read(s.exprs):
            readers.setdefault(name, []).append(s)
    asked = {s.name: _read(n for e in s.exprs for n in walk(e) if _asks(n)) for s in f.stages}

    def tested(name: str) -> bool:
        return any(
            name in asked[r.name] or isinstance(r, Scatter) or (r.name not in stored and tested(r.name))
            for r in readers.get(name, ())
        )

    of_lanes = {d.stage for d in f.schedule if d.call == "atomic"}  # in any order
    sums = [s for s in f.stages if isinstance(s, TeStage) and (_is_product(s) or s.name in of_lanes)]
    return {s.name for s in sums if not tested(s.name)}


def _tiled(f: TeFunc) -> set[str]:
    """Reductions, which schedules compute in tiles of constant size, and inlined stages through which they are read."""
    stored = _stored(f)
    found: set[str] = set()
    for s in f.stages:
        if not isinstance(s, TeStage):
            continue
        if isinstance(s.expr, Reduce) or (s.name not in stored and _read(s.exprs) & found):
            found.add(s.name)
    return found


class _Generator:
    def __init__(self, f: TeFunc, nodes: Sequence[str], halves_in_f32: bool) -> None:
        self.f, self.nodes, self.halves_in_f32 = f, nodes, halves_in_f32
        self.results = {r.name for r in f.results}
        self.layouts = {p.name: p.type.layout for p in f.params if not p.type.layout.is_row_major}
        self.lines: list[str] = []
        self.is_exact = any(_meets_infinities(n) for s in f.stages for e in s.exprs for n in walk(e))
        self.relaxed = _untested_sums(f) if self.is_exact else set[str]()
        self.tiled = frozenset(_tiled(f))
        self.positions = {s.name: n for s in f.stages if (n := clamped_below(s)) is not None}
        self.in_parts = {d.stage: str(d.args[0]) for d in f.schedule if d.call == "in_parts"}

    def text(self) -> str:
        f = self.f
        head = [comment(n) for n in self.nodes[:8]]
        if len(self.nodes) > 8:
            head.append(f"// and {len(self.nodes) - 8} more")
        head += [f"class {f.name} : public Generator<{f.name}> {{", "public:"]
        head += [f'    Input<{self._buffer(p)}> {p.name}{{"{p.name}"}};  // {p.type}' for p in f.params]
        head += [f'    Input<int32_t> {d}{{"{d}"}};' for d in f.dims]
        head += [f'    Output<{self._buffer(r)}> {r.name}{{"{r.name}"}};  // {r.type}' for r in f.results]
        if f.halide:
            return self._of_user(head)
        self._algorithm()
        algorithm = self.lines
        self.lines = []
        self._schedule()
        body = [
            "    void generate() {",
            "        // The algorithm",
            *algorithm,
            "",
            "        // The schedule",
            *self.lines,
            "    }",
        ]
        return "\n".join([*head, "", *body, "};", f"HALIDE_REGISTER_GENERATOR({f.name}, {f.name})", ""])

    def _of_user(self, head: list[str]) -> str:
        """The class around a user's body."""
        for p in (*self.f.params, *self.f.results):
            self._bounds(p)
        body = ["    void generate() {", *self.f.halide.splitlines(), *self.lines, "    }"]
        return "\n".join([*head, "", *body, "};", f"HALIDE_REGISTER_GENERATOR({self.f.name}, {self.f.name})", ""])

    def _buffer(self, p: Param) -> str:
        return f"Buffer<{cpp_type(p.type.dtype)}, {len(p.type.physical)}>"

    def _line(self, text: str) -> None:
        self.lines.append(f"        {text}")

    # the algorithm

    def _algorithm(self) -> None:
        names = [a.name for s in self.f.stages for a in s.axes]
        if names:
            made = ", ".join(f'{n}("{n}")' for n in dict.fromkeys(names))
            self._line(f"Var {made};")
        for s in self.f.stages:
            if s.note:
                self._line(comment(s.note))
            if s.name not in self.results:
                self._line(f'Func {s.name}("{s.name}");')
            if isinstance(s, Scatter):
                self._scatter(s)
            else:
                self._stage(s)

    def _at(self, s: AnyStage) -> str:
        return f"{s.name}({', '.join(a.name for a in reversed(s.axes))})"

    def _printer(self, s: AnyStage) -> Printer:
        inner = s.over if isinstance(s, Scatter) else reduce_axes(s.expr)
        printer = Printer(self.f.shapes, axis_symbols((*s.axes, *inner)), self.layouts, self.tiled)
        printer.relaxed = isinstance(s, TeStage) and facts_of_role(s.role).any_order_sum
        printer.positions = self.positions
        printer.halves_in_f32 = self.halves_in_f32
        border = facts_of_role(s.role).border_axis if isinstance(s, TeStage) else None
        if border is not None and s.axes:
            printer.border = s.axes[border].name
        return printer

    def _domain(self, name: str, axes: Sequence[Axis]) -> None:
        """An RDom over axes, the last one innermost, and a name for each of its variables."""
        spans = ", ".join(f"{{0, {dim_text(a.extent)}}}" for a in reversed(axes))
        self._line(f'RDom {name}({{{spans}}}, "{name}");')
        for k, a in enumerate(reversed(axes)):
            self._line(f"RVar {a.name} = {name}[{k}];")

    def _in_parts(self, s: TeStage) -> None:
        """One update per part, over its own RVar instead of the axis that has parts."""
        self._line(f"{self._at(s)} = undef<{cpp_type(s.dtype)}>();")
        name = self.in_parts[s.name]
        for k, part in enumerate(parts(along(s, name)), 1):
            axis = Axis(_axis_of_part(name, k), part.extent)
            self._domain(f"dom_{axis.name}", (axis,))
            printer = Printer(self.f.shapes, axis_symbols((*s.axes, axis)), self.layouts, self.tiled)
            printer.halves_in_f32 = self.halves_in_f32
            here = Index(axis.name)
            expr = transform(part.expr, lambda n, here=here: here if n == Index(name) else None)
            place = printer.index(here + wrap(part.start))
            at = ", ".join(place if a.name == name else a.name for a in reversed(s.axes))
            self._line(f"{s.name}({at}) = {self._exactly(printer.data(expr))};")

    def _stage(self, s: TeStage) -> None:
        if s.name in self.in_parts:
            self._in_parts(s)
            return
        printer = self._printer(s)
        if isinstance(s.expr, Reduce) and s.expr.kind not in ("argmax", "argmin"):
            self._block(s, printer) if s.role == SUM_BLOCK else self._reduce(s.name, self._at(s), s.expr, printer)
            return
        for k, r in enumerate(n for n in walk(s.expr) if isinstance(n, Reduce)):
            name = f"{s.name}_r{k}"
            self._line(f'Func {name}("{name}");')
            at = f"{name}({', '.join(a.name for a in reversed(s.axes))})"
            printer.names[id(r)] = at if r.kind not in ("argmax", "argmin") else f"{at}[1]"
            if r.kind in ("argmax", "argmin"):
                self._arg_reduce(name, at, r, printer)
            else:
                self._reduce(name, at, r, printer)
        if isinstance(s.expr, Call) and s.expr.fn == "decay":  # the function itself handles NaN
            self._line(f"{self._at(s)} = te_decay({self._exactly(printer.data(s.expr.args[0]))});")
        else:
            self._line(f"{self._at(s)} = {self._exactly(printer.data(s.expr))};")

    def _exactly(self, text: str) -> str:
        """An expression, protected from fast-math, which assumes that infinities and NaNs do not occur."""
        return f"strict_float({text})" if self.is_exact else text

    def _reduce(self, name: str, at: str, r: Reduce, printer: Printer) -> None:
        self._domain(f"dom_{name}", r.axes)
        self._line(f"{at} = {literal_text(neutral(r.kind, r.dtype), r.dtype)};")
        printer.carried = at
        body = printer.term(r.body) if r.kind == "sum" else printer.data(r.body)
        if r.kind in ("sum", "prod"):
            self._add(name, at, body, "+" if r.kind == "sum" else "*")
            if product_in_pairs(r) is not None:
                self._line(f"te_pairs_fit({name});")
            return
        body = body if name in self.relaxed else self._exactly(body)
        match r.kind:
            case "fold" | "settle":
                self._line(f"{at} = {body};")
                if r.kind == "settle":
                    self._line(f"te_settle({name}, {r.axes[0].name});")
            case "any" | "all":
                self._line(f"{at} = {at} {'||' if r.kind == 'any' else '&&'} {body};")
            case _:
                helper = f"te_{r.kind}" if r.dtype.is_float else r.kind
                self._line(f"{at} = {helper}({at}, {body});")

    def _block(self, s: TeStage, printer: Printer) -> None:
        """A block of a long sum, whose loop ends with the last existing term."""
        r, term = s.expr, _term(s)
        assert isinstance(r, Reduce)
        self._domain(f"dom_{s.name}", r.axes)
        if isinstance(r.body, Select):
            test = r.body.cond
            assert isinstance(test, Binary), "a position is tested"
            self._line(f"dom_{s.name}.where({printer.index(test.lhs)} < {printer.index(test.rhs)});")
        self._line(f"{self._at(s)} = {literal_text(0, r.dtype)};")
        self._add(s.name, self._at(s), printer.term(term, guarded=term is not r.body))

    def _add(self, name: str, at: str, term: str, sign: str = "+") -> None:
        """The update of a sum or of a product."""
        total = f"{at} {sign} {term if name in self.relaxed else self._exactly(term)}"
        self._line(f"{at} = {total if name in self.relaxed else self._exactly(total)};")

    def _arg_reduce(self, name: str, at: str, r: Reduce, printer: Printer) -> None:
        """The first extreme element; NaN beats every number."""
        self._domain(f"dom_{name}", r.axes)
        dtype = r.body.dtype
        best = dtype.lowest if r.kind == "argmax" else dtype.highest
        self._line(f"{at} = Tuple({literal_text(best, dtype)}, cast<int64_t>(-1));")
        self._line(f"Expr {name}_v = {self._exactly(printer.data(r.body))};")
        sign = ">" if r.kind == "argmax" else "<"
        beats = f"{name}_v {sign} {at}[0]"
        if dtype.is_float:
            greater, less = (f"{name}_v", f"{at}[0]") if sign == ">" else (f"{at}[0]", f"{name}_v")
            beats = f"(te_lt({less}, {greater}) || te_isnan({name}_v)) && !te_isnan({at}[0])"
        self._line(f"Expr {name}_better = {at}[1] < 0 || ({beats});")
        position = f"cast<int64_t>({r.axes[0].name})"
        self._line(
            f"{at} = Tuple(select({name}_better, {name}_v, {at}[0]), select({name}_better, {position}, {at}[1]));"
        )

    def _scatter(self, s: Scatter) -> None:
        printer = self._printer(s)
        start = f"undef<{cpp_type(s.dtype)}>()" if s.base is not None or running(s) else printer.data(s.init)
        self._line(f"{self._at(s)} = {start};")
        passed = passed_on(s)
        for over, own in passed.items():
            self._line(f'Var {over}("{own}");')
        self._domain(f"dom_{s.name}", [a for a in s.over if a.name not in passed])
        at = printer.place(s, s.target)
        value = self._exactly(printer.data(s.value))
        match s.combine:
            case _ if (how := running(s)) is not None:
                more = self._exactly(f"{printer.place(s, place_before(s))} {'+' if how == 'add' else '*'} {value}")
                self._line(f"{at} = select({s.over[0].name} > 0, {more}, {value});")
            case "set" | "into":
                self._line(f"{at} = {value};")
            case "add" | "mul" if s.dtype == F16 and self.halves_in_f32:
                self._line(f"{at} = {half_text(s.combine, at, value)};")
            case "add" | "mul":
                self._line(f"{at} {'+' if s.combine == 'add' else '*'}= {value};")
            case _:
                helper = f"te_{s.combine}" if s.dtype.is_float else s.combine
                self._line(f"{at} = {helper}({at}, {value});")

    # the schedule

    def _schedule(self) -> None:
        for p in (*self.f.params, *self.f.results):
            self._bounds(p)
        declared = {a.name for s in self.f.stages for a in s.axes} | {
            a.name for s in self.f.stages for a in (s.over if isinstance(s, Scatter) else reduce_axes(s.expr))
        }
        self._declare(self.f.schedule, declared)
        variants: Counter[str] = Counter()
        for d in self.f.schedule:
            if d.call in ("compute_inline", "in_parts"):
                continue  # the default for every stage; part of the algorithm
            if d.call == "specialize":
                variants[d.stage] += 1
                (test,) = d.args
                assert isinstance(test, AtMost), "the check of schedules saw to it"
                wide = not (is_counted(test.left) and is_counted(test.right))
                cond = f"{dim_text(test.left, wide=wide)} <= {dim_text(test.right, wide=wide)}"
                self._line(f"Stage {d.stage}_variant{variants[d.stage]} = {d.stage}.specialize({cond});")
                continue
            if d.call == "fetch_ahead":
                self._line(f"te_fetch_ahead({', '.join(self._argument(d, a) for a in d.args)});")
                continue
            if d.call in ("fetch_beyond", "in_tiles"):
                self._line(f"te_{d.call}({', '.join(map(str, (d.stage, *d.args)))});")
                continue
            target = (
                f"{d.stage}_variant{d.variant}"
                if d.variant
                else f"{d.stage}.update({d.update - 1})"
                if d.update
                else d.stage
            )
            self._line(f"{target}.{d.call}({', '.join(self._argument(d, a) for a in d.args)});")

    def _declare(self, schedule: Iterable[Directive], declared: set[str]) -> None:
        """Variables that splits and fuses make: RVars where an update's own variable is split, Vars elsewhere."""
        reduced = {a.name for s in self.f.stages for a in (s.over if isinstance(s, Scatter) else reduce_axes(s.expr))}
        reduced |= {*self.in_parts.values()}
        reduced -= {a for s in self.f.stages if isinstance(s, Scatter) for a in passed_on(s)}
        for d in schedule:
            if d.call not in ("split", "fuse"):
                continue
            made = d.args[1:3] if d.call == "split" else d.args[2:3]
            kind = "RVar" if d.args[0] in reduced else "Var"
            for name in made:
                if name not in declared:
                    declared.add(str(name))
                    if kind == "RVar":
                        reduced.add(str(name))
                    self._line(f'{kind} {name}("{name}");')

    def _argument(self, d: Directive, a: Arg) -> str:
        if d.update and a == self.in_parts.get(d.stage):
            return _axis_of_part(str(a), d.update)
        if isinstance(a, Sym):
            return dim_text(a)
        return f"TailStrategy::{a}" if a in TAILS else str(a)

    def _bounds(self, p: Param) -> None:
        """State extents and strides, so that address arithmetic uses constants if sizes are constant."""
        extents, strides = (", ".join(map(dim_text, reversed(found))) for found in (p.type.physical, p.type.strides))
        if p.type.layout.within:
            self._line(f"te_part({p.name}, {{{extents}}}, {{{strides}}});")
        elif extents:
            self._line(f"te_dense({p.name}, {{{extents}}});")


def _axis_of_part(axis: str, k: int) -> str:
    """The axis of a stage that has parts, in its k-th part, in C++."""
    return f"{axis}_part{k}"


def source(functions: Sequence[str], *, whole: bool = False) -> str:
    """A translation unit of generators; users' bodies use `whole` Halide."""
    return f'#include "{"whole" if whole else "te"}.h"\n\n' + "\n".join(functions)
