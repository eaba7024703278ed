"""The manifest of a lowered module: its signature and its plan as plain data."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from occ.compiler.ir.cost import operations
from occ.compiler.ir.dim import Dim, Sym, rebuild, substitute
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.te import TeFunc
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value
from occ.runtime.artifact import weight_infos
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import Buffer, Constraint, DimInfo, Manifest, Plan, Step, Storage, TensorInfo


def occ_version() -> str:
    """Version of this compiler."""
    try:
        return version("occ")
    except PackageNotFoundError:
        return "unknown"


class _Expr:
    """A size expression under construction; arithmetic nests lists."""

    def __init__(self, data: DimExpr) -> None:
        self.data = data

    def __mul__(self, other: _Expr | int) -> _Expr:
        value = other.data if isinstance(other, _Expr) else other
        return self if value == 1 else _Expr(["*", value, self.data])

    def __add__(self, other: _Expr | int) -> _Expr:
        value = other.data if isinstance(other, _Expr) else other
        return self if value == 0 else _Expr(["+", self.data, value])

    __radd__ = __add__
    __rmul__ = __mul__


_OPS = {"floordiv": "//", "min": "min", "max": "max"}


def dim_expr(d: Dim) -> DimExpr:
    """A dim in the form of the manifest."""
    if not isinstance(d, Sym):
        return d
    made = rebuild(
        d,
        lambda s: _Expr(s.name),
        lambda name, args: _Expr([_OPS[name], *(a.data if isinstance(a, _Expr) else a for a in args)]),
    )
    return made.data


def tensor_info(name: str, type_: TensorType) -> TensorInfo:
    """A tensor of the signature."""
    return TensorInfo(name, type_.dtype.name, [dim_expr(d) for d in type_.dims])


def dim_infos(m: Module) -> list[DimInfo]:
    """The symbolic dims of a module."""
    found: list[DimInfo] = []
    for info in m.symbols.values():
        hi = info.symbol.hi if isinstance(info.symbol.hi, int) else None
        found.append(DimInfo(info.symbol.name, info.label, info.symbol.lo, hi, info.symbol.divisible_by))
    return found


def signature(m: Module) -> tuple[list[TensorInfo], list[TensorInfo], list[DimInfo], list[Constraint]]:
    """Inputs, outputs, dims and constraints of a module."""
    inputs = [tensor_info(a.name, a.tensor) for a in m.main.args]
    outputs = [tensor_info(n, r.tensor) for n, r in zip(m.main.result_names, m.main.results, strict=True)]
    constraints = [Constraint(dim_expr(c.lhs), dim_expr(c.rhs), c.node) for c in m.constraints]
    return inputs, outputs, dim_infos(m), constraints


class _Planner:
    """Reads the plan off the ops of a lowered function."""

    def __init__(self, m: Module, entry: str, tasks: Callable[[TeFunc], Dim] | None) -> None:
        self.m, self.entry, self.tasks = m, entry, tasks
        self.weights = list(m.weights.values())
        self.buffers: list[Buffer] = []
        self.storages: list[Storage] = []
        self.storage_of: dict[Value, int] = {}
        self._buffer_of: dict[tuple[int, str, str], int] = {}

    def plan(self) -> Plan:
        body = self.m.main.body
        for k, w in enumerate(self.weights):
            self._store(w, Storage("weight", k))
        for k, arg in enumerate(body.args):
            self._store(arg, Storage("input", k))
        steps: list[Step] = []
        for op in body.body:
            match op.name:
                case "alloc":
                    self._alloc(op)
                case "view":
                    assert op.operands[0] is not None
                    self.storage_of[op.result] = self.storage_of[op.operands[0]]
                case "kernel":
                    steps.append(self._kernel(op))
                case _:
                    steps.append(self._host(op))
        inputs = [self._buffer(a, a.tensor) for a in body.args]
        outputs = [self._buffer(r, r.tensor) for r in self.m.main.results]
        return Plan(self.buffers, self.storages, steps, inputs, outputs, self._arena())

    def _arena(self) -> int:
        slots = [s for s in self.storages if s.kind == "arena"]
        if any(s.offset < 0 for s in slots):
            return -1
        return max((s.offset + s.size for s in slots), default=0)

    def _store(self, value: Value, storage: Storage) -> None:
        self.storage_of[value] = len(self.storages)
        self.storages.append(storage)

    def _alloc(self, op: Op) -> None:
        a = op.attrs
        if "output" in a:
            self._store(op.result, Storage("output", a["output"]))
        else:
            size = dim_expr(op.result.tensor.nbytes)
            self._store(op.result, Storage("arena", 0, size, a["first"], a["last"], a.get("offset", -1)))

    def _buffer(self, value: Value, type_: TensorType) -> int:
        """The buffer that shows the bytes of a value under a type."""
        shape = [dim_expr(d) for d in type_.physical]
        key = (self.storage_of[value], type_.dtype.name, str(shape))
        if key not in self._buffer_of:
            self._buffer_of[key] = len(self.buffers)
            self.buffers.append(Buffer(type_.dtype.name, shape, self.storage_of[value]))
        return self._buffer_of[key]

    def _kernel(self, op: Op) -> Step:
        f = self.m.te[op.attrs["te"]]
        cut = len(op.operands) - op.attrs["writes"]
        values = op.inputs
        given = dict(zip(f.dims, op.attrs.get("dims", ()), strict=True))
        shown = [self._buffer(v, _at_call(p.type, given)) for v, p in zip(values, (*f.params, *f.results), strict=True)]
        checks = list(op.attrs.get("checks", ()))
        tasks = None if self.tasks is None else dim_expr(substitute(self.tasks(f), given))
        return Step(
            "kernel", self.entry.format(f.name), shown[:cut], shown[cut:], [dim_expr(d) for d in given.values()], tasks,
            nodes=list(op.loc.nodes), flag=shown[-1] if checks else -1, checks=checks,
            operations=dim_expr(substitute(operations(f), given)),
        )  # fmt: skip

    def _host(self, op: Op) -> Step:
        cut = len(op.operands) - op.attrs["writes"]
        shown = [self._buffer(v, v.tensor) for v in op.inputs]
        routine = op.attrs["routine"]
        if routine == "copy":
            return Step("copy", "copy", shown[:cut], shown[cut:])
        attrs = {k: v for k, v in op.attrs.items() if k not in ("routine", "writes")}
        return Step("host", routine, shown[:cut], shown[cut:], attrs=attrs, nodes=list(op.loc.nodes))


def _at_call(type_: TensorType, dims: dict[str, Dim]) -> TensorType:
    """The type of a parameter with the dims of a call put in."""
    return type_.with_shape(tuple(substitute(d, dims) for d in type_.dims))


def manifest(
    m: Module, *, library: str, machine: str, entry: str = "{}", tasks: Callable[[TeFunc], Dim] | None = None
) -> Manifest:
    """The manifest of a lowered module.

    Args:
        m: the module.
        library: path of the native code in the artifact.
        machine: what the code runs on, as text.
        entry: symbol of a kernel, with `{}` for the name of its te function.
        tasks: extent of the loop that a kernel leaves to its caller; None where kernels keep theirs.
    """
    planner = _Planner(m, entry, tasks)
    inputs, outputs, dims, constraints = signature(m)
    infos = weight_infos([w.name for w in planner.weights], [w.data.nbytes for w in planner.weights])
    return Manifest(
        m.name, m.target, f"occ {occ_version()}", dims, inputs, outputs, constraints, infos, planner.plan(),
        library=library, machine=machine,
    )  # fmt: skip
