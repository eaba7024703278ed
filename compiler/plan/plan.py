"""Writes the manifest of a lowered module: its plan, weights and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from occ.compiler.diagnostics import error, shorten
from occ.compiler.ir.dim import Dim, Sym, substitute
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.empty_results import empty_shapes
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.ops.own.data_dependent_sizes import is_defined_by_step
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.te.cost import operations
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.types import TensorType, Type
from occ.compiler.ir.verify_plan import STEPS
from occ.compiler.passes.fuse.use_kernels import member
from occ.compiler.plan.index_limits import limits
from occ.compiler.plan.signature import (
    MOST_OPERATIONS,
    constraint_infos,
    constraints_of,
    dim_expr,
    signature,
    value_info,
)
from occ.runtime.artifact import weight_infos
from occ.runtime.attributes import encode_attrs
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import Buffer, Constraint, Function, Manifest, Plan, Step, Storage
from occ.runtime.members import LIBRARY
from occ.runtime.version import occ_version

_SIZES = ("when", "upper_bounds", "defines")  # attributes that are tuples of dims


class _Planner:
    """Reads the plan of a function from its lowered ops."""

    def __init__(
        self, m: Module, weights: Mapping[str, int], entry: str, tasks: Callable[[TeFunc], Dim] | None
    ) -> None:
        self.m, self.entry, self.tasks = m, entry, tasks
        self.weights = weights
        self.buffers: list[Buffer] = []
        self.storages: list[Storage] = []
        self.storage_of: dict[Value, int] = {}
        self.start_of: dict[Value, Dim] = {}  # elements of the storage before a value, if there are any
        self._buffer_of: dict[str, int] = {}
        self._buffer_at: dict[tuple[Type | None, int, Dim], int] = {}
        self._bound: set[str] = set()
        self._costs: dict[str, tuple[Dim | None, Dim]] = {}  # of a te function: tasks and operations

    def plan(self, func: Func) -> Plan:
        for k, arg in enumerate(func.args):
            self._store(arg, Storage("input", k))
            if isinstance(arg.type, TensorType) and arg.type.shape is not None:
                self._bound |= {str(d) for d in arg.type.dims if isinstance(d, Sym)}
        steps: list[Step] = []
        for value in dict.fromkeys(v for op in func.body for v in op.inputs):
            if isinstance(value, Weight):
                if value.name in self.weights:
                    self._store(value, Storage("weight", self.weights[value.name]))
                else:
                    steps.append(self._strings(value))
        for op in func.body.body:
            match op.name:
                case "alloc":
                    self._alloc(op)
                case "view":
                    assert op.operands[0] is not None
                    self.storage_of[op.result] = self.storage_of[op.operands[0]]
                    self.start_of[op.result] = self.start_of.get(op.operands[0], 0) + op.attrs.get("start", 0)
                case "kernel":
                    steps.append(self._kernel(op))
                case "foreign":
                    steps.append(self._foreign(op))
                case _:
                    steps.append(self._host(op))
        inputs = [self._buffer(a, a.type) for a in func.args]
        outputs = [self._buffer(r, r.type) for r in func.results]
        shift = len(steps) - sum(op.name in STEPS for op in func.body.body)
        storages = [replace(s, first=s.first + shift, last=s.last + shift) if shift else s for s in self.storages]
        return Plan(self.buffers, storages, steps, inputs, outputs, self._arena())

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
        if "host" in a:
            self._store(op.result, Storage("host"))
        elif "output" in a:
            self._store(op.result, Storage("output", a["output"]))
        else:
            size = dim_expr(op.result.tensor.nbytes)
            self._store(op.result, Storage("arena", 0, size, a["first"], a["last"], a.get("offset", -1)))

    def _buffer(self, value: Value, type_: Type | None) -> int:
        """The buffer that shares the bytes of a value under another type."""
        place = type_, self.storage_of[value], self.start_of.get(value, 0)
        if place not in self._buffer_at:
            self._buffer_at[place] = self._new_buffer(*place)
        return self._buffer_at[place]

    def _new_buffer(self, type_: Type | None, storage: int, start: Dim) -> int:
        info = value_info("", type_)
        opaque = info.kind != "tensor"
        shape: list[DimExpr] = []
        strides: list[DimExpr] = []
        if not opaque and isinstance(type_, TensorType):
            shape = [dim_expr(d) for d in type_.physical]
            strides = [dim_expr(d) for d in type_.strides] if type_.layout.within else []
        made = Buffer(info.dtype, shape, storage, opaque, dim_expr(start), strides)
        key = str(made)
        if key not in self._buffer_of:
            self._buffer_of[key] = len(self.buffers)
            self.buffers.append(made)
        return self._buffer_of[key]

    def _kernel(self, op: Op) -> Step:
        f = self.m.te[op.attrs["te"]]
        cut = len(op.operands) - op.attrs["writes"]
        values = op.inputs
        given = dict(zip(f.dims, op.attrs.get("dims", ()), strict=True))
        shown = [
            self._buffer(v, p.type.substituted(given)) for v, p in zip(values, (*f.params, *f.results), strict=True)
        ]
        checks = list(op.attrs.get("checks", ()))
        if f.name not in self._costs:
            self._costs[f.name] = None if self.tasks is None else self.tasks(f), operations(f)
        tasks, work = (None if d is None else dim_expr(substitute(d, given)) for d in self._costs[f.name])
        if isinstance(work, int) and work > MOST_OPERATIONS:
            raise error(
                "OCC0308",
                f"the kernel would compute {work:.0e} operations",
                where=f"{shorten(self.m.name)}: {shorten(str(op.loc))}",
                help="check the extents that the node reduces: `occ dump --stage lowered`",
            )
        return Step(
            "kernel", self.entry.format(f.name), shown[:cut], shown[cut:], [dim_expr(d) for d in given.values()], tasks,
            nodes=list(op.loc.nodes), flag=shown[-1] if checks else -1, checks=checks, operations=work,
        )  # fmt: skip

    def _foreign(self, op: Op) -> Step:
        a, cut = op.attrs, len(op.operands) - op.attrs["writes"]
        shown = [self._buffer(v, v.type) for v in op.inputs]
        attrs = encode_attrs({"library": member(op), "arguments": a["arguments"], "gives_code": a["gives_code"]})
        return Step("foreign", a["symbol"], shown[:cut], shown[cut:], attrs=attrs, nodes=list(op.loc.nodes))

    def _host(self, op: Op) -> Step:
        cut = len(op.operands) - op.attrs["writes"]
        shown = [-1 if v is None else self._buffer(v, v.type) for v in op.operands]
        routine = op.attrs["routine"]
        if routine == "copy":
            return Step("copy", "copy", shown[:cut], shown[cut:])
        attrs = {k: v for k, v in op.attrs.items() if k not in ("routine", "writes", *_SIZES)} | _more(op, cut, self.m)
        sizes = {k: [dim_expr(d) for d in op.attrs[k]] for k in _SIZES if k in op.attrs}
        kind = routine if routine in ("deferred", "if", "loop", "scan", "map") else "host"
        return Step(
            kind, routine, shown[:cut], shown[cut:], attrs=encode_attrs(attrs) | sizes, nodes=list(op.loc.nodes),
            binds=self._binds(op.operands[cut:], op.attrs.get("defines", ())),
        )  # fmt: skip

    def _binds(self, results: Sequence[Value | None], finds: Sequence[Dim]) -> list[list[Any]]:
        """Sizes that a step's results define: the result, the axis (or element), and the name."""
        binds: list[list[Any]] = []
        for k, d in enumerate(finds):
            if is_defined_by_step(d) and str(d) not in self._bound:
                self._bound.add(str(d))
                binds.append([0, k, str(d)])
        for k, value in enumerate(results):
            if value is None or not isinstance(value.type, TensorType) or value.type.shape is None:
                continue
            for axis, d in enumerate(value.type.shape):
                if isinstance(d, Sym) and d.is_symbol and str(d) not in self._bound and self.m.symbols[str(d)].is_data:
                    self._bound.add(str(d))
                    binds.append([k, axis, str(d)])
        return binds

    def _strings(self, w: Weight) -> Step:
        """Strings cannot be mapped as bytes: a host step creates them."""
        self._store(w, Storage("host"))
        return Step(
            "host", "constant", [], [self._buffer(w, w.type)], attrs=encode_attrs({"value": w.data, "n_results": 1})
        )


def _more(op: Op, cut: int, m: Module) -> dict[str, Any]:
    """Additional fields of control-flow and deferred steps."""
    n = op.attrs["n_results"]
    match op.attrs["routine"]:
        case "deferred":
            return {"text": deferred_text(op)}
        case "loop":
            n_carried = cut - 2 - op.attrs["captures"]
            return {"n_carried": n_carried, "empty": _empty(op, op.operands[cut + n_carried :])}
        case "scan":
            n_states = cut - op.attrs["captures"] - op.attrs["num_scan_inputs"]
            return {"n_states": n_states, "empty": _empty(op, op.operands[cut + n_states : cut + n])}
        case "map":
            return {"n_inputs": cut - op.attrs["captures"]}
        case _:
            return {}


def _empty(op: Op, results: Sequence[Value | None]) -> list[np.ndarray]:
    """The results of stacking no tensors, with declared extents where only an iteration finds them."""
    types = [v.type if v is not None and isinstance(v.type, TensorType) else TensorType(F32, (0,)) for v in results]
    shapes = empty_shapes(op, [len(t.shape or (0,)) for t in types])
    return [np.empty(s, t.dtype.numpy) for s, t in zip(shapes, types, strict=True)]


def defer_text(op: Op, operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """A deferred op outside of a region, as text and operands for `DeferredCompiler`."""
    outer = list(dict.fromkeys(op.inputs))
    given = {v: x for v, x in zip(op.operands, operands, strict=True) if v is not None}
    body = Region([v.type for v in outer], [v.name for v in outer])
    inside = dict(zip(outer, body.args, strict=True))
    copy = Op(
        op.operator, [v if v is None else inside[v] for v in op.operands], op.attrs, [None] * len(op.results),
        result_names=[r.name for r in op.results], loc=op.loc,
    )  # fmt: skip
    body.insert(copy)
    body.close(copy.results)
    return deferred_text(Op("deferred", outer, {}, [None] * len(op.results), regions=[body])), [given[v] for v in outer]


def deferred_text(op: Op) -> str:
    """The op inside a `deferred` region, as a module of its own."""
    (region,) = op.regions
    names = [f"r{k}" for k in range(len(region.yields))]  # those of results may be alike, as those left out are
    m = Module("deferred", "imported", {"main": Func("main", region, names)})
    stripped = [*region.args, *(r for inner in region for r in inner.results)]
    types = [v.type for v in stripped]
    for v in stripped:
        v.type = None
    try:
        return module_text(m)
    finally:
        for v, t in zip(stripped, types, strict=True):
            v.type = t


def manifest(
    m: Module, *, library: str, machine: str, entry: str = "{}", tasks: Callable[[TeFunc], Dim] | None = None
) -> Manifest:
    """The manifest of a lowered module.

    Args:
        m: the module.
        library: path of the native code in the artifact.
        machine: the machine for which the code is generated, as text.
        entry: symbol of a kernel, with `{}` for the name of its te function.
        tasks: extent of the loop that a kernel leaves to its caller; None if kernels keep theirs, and count elements in
            32 bits.

    Raises:
        CompileError: OCC0308, OCC0309 a kernel would run too long, or has too many elements.
    """
    stored = {w.name: k for k, w in enumerate(stored_weights(m))}
    plans = {f.name: _Planner(m, stored, entry, tasks).plan(f) for f in m.funcs.values()}
    counted = {f.name: constraint_infos(limits(m, f, elements=tasks is None)) for f in m.funcs.values()}
    functions = {f.name: _function(m, f, plans[f.name], counted[f.name]) for f in m.funcs.values() if f is not m.main}
    inputs, outputs, dims, constraints = signature(m)
    infos = weight_infos(list(stored), [w.data.nbytes for w in stored_weights(m)])
    return Manifest(
        m.name, m.target, f"occ {occ_version()}", dims, inputs, outputs, constraints + counted["main"], infos,
        plans["main"],
        library=library, machine=machine, functions=functions,
    )  # fmt: skip


def cpu_manifest(m: Module, machine: str) -> Manifest:
    """The manifest of a module that is lowered for target `cpu`."""
    return manifest(m, library=LIBRARY, machine=machine, entry="{}_argv")


def _function(m: Module, f: Func, plan: Plan, more: list[Constraint]) -> Function:
    args, results = ([value_info(v.name, v.type) for v in values] for values in (f.args, f.results))
    return Function(args, results, plan, constraints_of(m, f.name) + more)


def stored_weights(m: Module) -> list[Weight]:
    """The constants in the weights file: all but strings."""
    return [w for w in m.weights.values() if w.tensor.dtype.kind != "s"]
