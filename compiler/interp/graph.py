"""Interprets a module op by op with numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.compiler.interp.evaluate import run as run_te
from occ.compiler.interp.value_types import is_of_a_run, type_problem
from occ.compiler.ir.build_te import build_te, parameters
from occ.compiler.ir.builder import GraphBuilder, expand_composite
from occ.compiler.ir.deferred import is_deferred
from occ.compiler.ir.dim import Dim, Sym, evaluate, symbols
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.empty_results import empty_shapes
from occ.compiler.ir.func import Constraint, Func
from occ.compiler.ir.kernel import CKernel, library_of
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.ops.own.data_dependent_sizes import DECIDED, is_defined_by_step
from occ.compiler.ir.shape import is_data_name
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.types import TensorType
from occ.runtime.errors import RunError
from occ.runtime.hostops import run_host
from occ.runtime.native.control import run_control
from occ.runtime.native.foreign import run_foreign

Env = dict[Value, Any]
Dims = dict[str, int]
RunDeferred = Callable[[Op, Sequence[Any]], list[Any]]


class Interpreter:
    """Runs a module of a stage from `inferred` to `scheduled`; te functions of ops are built once and cached.

    Args:
        m: the module.
        run_deferred: runs an op that waits for its operands.
    """

    def __init__(self, m: Module, run_deferred: RunDeferred | None = None) -> None:
        self.m, self._run_deferred = m, run_deferred
        self._te: dict[Op, tuple[TeFunc, list[Value]]] = {}
        self._expanded: dict[Op, tuple[Region, Sequence[Value]]] = {}
        self._deferred: dict[Op, bool] = {}

    def run(self, inputs: Sequence[Any], dims: Mapping[str, int]) -> list[Any]:
        """The results of `main`.

        Args:
            inputs: an array for each argument; sequences are lists, optionals None or the value.
            dims: values of the symbolic dims.

        Raises:
            RunError: OCC0504 a node cannot process its data.
        """
        return self._function(self.m.main, inputs, dict(dims))

    def _function(self, func: Func, inputs: Sequence[Any], dims: Dims) -> list[Any]:
        for arg, x in zip(func.args, inputs, strict=True):
            _bind(arg, x, dims)
        waiting = [c for c in self.m.constraints if c.func == func.name]
        return self._region(func.body, dict(zip(func.args, inputs, strict=True)), dims, waiting)

    def _region(self, region: Region, env: Env, dims: Dims, waiting: Sequence[Constraint] = ()) -> list[Any]:
        last_use = {v: op for op in region for v in op.inputs}
        for op in region.body:
            waiting = _check(waiting, dims)
            found = self.op(op, env, dims)
            _take_sizes(op, found, dims)
            for value, x in zip(op.results, found, strict=True):
                if text := type_problem(x, value.type, dims):
                    of_data = text.startswith("extents") and is_of_a_run(value.type)  # what a user gives decides them
                    code = "OCC0503" if of_data else "OCC0901"
                    raise RunError(code, f"node `{op.loc}` ({op.name}) gave {text} for `{value.name}`")
                env[value] = x
                _bind(value, x, dims)
            for v in op.inputs:
                if last_use[v] is op and v not in region.args:
                    env.pop(v, None)
        return [_read(v, env) for v in region.yields]

    def op(self, op: Op, env: Env, dims: Mapping[str, int]) -> list[Any]:
        """The results of one op, its operands in `env`."""
        known = dict(dims)
        if op.name in ("fuse", "foreign"):
            (region,) = op.regions
            given = dict(zip(region.args, (_read(v, env) for v in op.inputs), strict=True))
            return self._region(region, env | given, known)
        reads = [None if v is None else _read(v, env) for v in op.operands]
        if op.name == "copy":
            return reads
        if op.spec.host:
            return run_host(op.spec.host, reads, _attrs(op), op.loc.nodes)
        if "control" in op.spec.tags:
            return self._control(op, reads, known)
        if self._is_deferred(op):
            assert self._run_deferred is not None, f"{op} is deferred"
            return self._run_deferred(op, reads)
        if op.spec.composite is not None:
            return self._composite(op, env, known)
        if op.spec.meaning == "kernel":
            return _of_user(op, reads, known)
        if op.name == "call":
            return _call(op, self.m.te[op.attrs["te"]], reads, known)
        if "view" in op.spec.tags or op.name == "view":
            shape = _physical(op.result.tensor, dims)
            return [_read(op.inputs[0], env).reshape(shape)]
        if op not in self._te:
            self._te[op] = _te_of(op)
        f, params = self._te[op]
        try:
            return run_te(f, [_read(v, env) for v in params], dims)
        except ValueError as e:  # a text that is not a number
            raise RunError("OCC0504", f"node `{op.loc}`: {e}") from None

    def _is_deferred(self, op: Op) -> bool:
        if op not in self._deferred:
            self._deferred[op] = op.name == "deferred" or (self._run_deferred is not None and is_deferred(op))
        return self._deferred[op]

    def _control(self, op: Op, reads: list[Any], dims: Dims) -> list[Any]:
        a = _attrs(op)
        n_operands, n_captures = len(reads), op.attrs["captures"]
        match op.name:
            case "Loop":
                a.n_carried = n_operands - 2 - n_captures
                a.empty = _empty(op, op.results[a.n_carried :], dims)
            case "Scan":
                a.n_states = n_operands - n_captures - a.num_scan_inputs
                a.empty = _empty(op, op.results[a.n_states :], dims)
            case _:
                a.n_inputs = n_operands - n_captures
        kind = {"SequenceMap": "map"}.get(op.name, op.name.lower())
        call = lambda name, given: self._function(self.m.funcs[name], given, dict(dims))
        return run_control(kind, reads, a, call, (str(op.loc),))

    def _composite(self, op: Op, env: Env, dims: Dims) -> list[Any]:
        if op not in self._expanded:
            region = Region()
            results = expand_composite(op, GraphBuilder(region, None, op.loc, self.m), op.operands)
            region.close(results[: len(op.results)])
            self._expanded[op] = (region, results)
        return self._region(self._expanded[op][0], dict(env), dims)


def _check(constraints: Sequence[Constraint], dims: Dims) -> list[Constraint]:
    """Check the build's assumptions about sizes; returns those that cannot be checked yet.

    Raises:
        RunError: OCC0503.
    """
    waiting: list[Constraint] = []
    for c in constraints:
        if not set(symbols(c.lhs, c.rhs)) <= set(dims):
            waiting.append(c)
        elif evaluate(c.lhs, dims) != evaluate(c.rhs, dims):
            if (size := evaluate(c.rhs, dims)) < 0:
                raise RunError(
                    "OCC0503",
                    f"a result of node `{c.node}` would have {_in_words(c.rhs)} = {size} elements along an axis",
                )
            sides = " and ".join(f"{_in_words(d)} = {evaluate(d, dims)}" for d in (c.lhs, c.rhs))
            raise RunError("OCC0503", f"node `{c.node}` needs two sizes to be equal, but they are not: {sides}")
    return waiting


def _in_words(d: Dim) -> str:
    """A size as messages show it: the compiler's names for sizes that data decide mean nothing to a user."""
    return "a computed size" if any(map(is_data_name, symbols(d))) else str(d)


def _attrs(op: Op) -> SimpleNamespace:
    a = op.a
    a.n_results = len(op.results)
    for name, value in vars(a).items():
        if hasattr(value, "onnx"):  # the runtime identifies element types by name
            setattr(a, name, value.name)
    return a


def _bind(value: Value, x: Any, dims: Dims) -> None:
    """Bind the sizes that a value shows, whose array has its axes in memory order."""
    if isinstance(value.type, TensorType) and value.type.shape is not None:
        for d, n in zip(value.type.physical, np.shape(x), strict=False):
            if isinstance(d, Sym) and d.is_symbol:
                dims[str(d)] = n


def _take_sizes(op: Op, results: Sequence[Any], dims: Dims) -> None:
    """Bind the sizes that an op computes as elements of its result.

    Raises:
        RunError: OCC0503 one is not the expected one.
    """
    for d, n in zip(op.attrs["defines"], results[0], strict=True) if op.name == DECIDED else ():
        if is_defined_by_step(d):
            dims.setdefault(str(d), int(n))
        if evaluate(d, dims) != n:
            raise RunError("OCC0503", f"node `{op.loc}` gave a size of {n} where {evaluate(d, dims)} was expected")


def _empty(op: Op, values: Sequence[Value], dims: Mapping[str, int]) -> list[np.ndarray]:
    """The results of zero iterations; sizes that only an iteration would define are those that the file declares."""
    made: list[np.ndarray] = []
    types = [v.type if isinstance(v.type, TensorType) else TensorType(F32, None) for v in values]
    for t, declared in zip(types, empty_shapes(op, [len(t.shape or (0,)) for t in types]), strict=True):
        sizes = declared if t.shape is None else t.physical
        known = [evaluate(d, dims) if set(symbols(d)) <= set(dims) else n for d, n in zip(sizes, declared, strict=True)]
        made.append(np.empty(known, t.dtype.numpy))
    return made


def _call(op: Op, f: TeFunc, given: Sequence[Any], dims: Dims) -> list[Any]:
    """The results of a call; a te function may see the same bytes in another shape, with axes collapsed."""
    sizes = dict(zip(f.dims, (evaluate(d, dims) for d in op.attrs.get("dims", ())), strict=True))
    shaped = [x.reshape(_physical(p.type, sizes)) for p, x in zip(f.params, given, strict=True)]
    found = run_te(f, shaped, sizes)
    return [x.reshape(_physical(r.tensor, dims)) for r, x in zip(op.results, found, strict=True)]


def _of_user(op: Op, reads: Sequence[Any], dims: Mapping[str, int]) -> list[Any]:
    """The results of a user's C function."""
    kernel, names = op.spec.kernel, [o.name for o in (*op.spec.operands, *op.spec.results)]
    if not isinstance(kernel, CKernel):
        raise NotImplementedError(f"only Halide can run the kernel of {op.name}")
    made = [np.empty(_physical(r.tensor, dims), r.tensor.dtype.numpy) for r in op.results]
    given = [*reads, *[None] * (len(op.spec.operands) - len(reads))]
    types = [v if v is None else v.type for v in op.operands]
    types += [None] * (len(given) - len(types)) + [r.type for r in op.results]
    tensors = [np.ascontiguousarray(x) for x in given if x is not None] + made
    run_foreign(
        library_of(kernel.library), kernel.symbol, kernel.arguments(names, types, vars(op.a)), tensors, op.loc.nodes,
        gives_code=kernel.gives_code,
    )  # fmt: skip
    return made


def _physical(type_: TensorType, dims: Mapping[str, int]) -> list[int]:
    return [evaluate(d, dims) for d in type_.physical]


def _te_of(op: Op) -> tuple[TeFunc, list[Value]]:
    inputs = list(dict.fromkeys(op.inputs))
    f = build_te(op.name, [op], inputs, op.results)
    by_name = parameters(inputs, [op])
    return f, [by_name[p.name] for p in f.params]


def _read(value: Value, env: Mapping[Value, Any]) -> Any:
    """The array of a value, in its layout; te functions know their parameters' layouts."""
    return value.data if isinstance(value, Weight) and value not in env else env[value]
