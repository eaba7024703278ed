"""Runs a module with numpy, op by op: the oracle of the tests and the `interp` target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from occ.compiler.interp.evaluate import run as run_te
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import evaluate
from occ.compiler.ir.layout import unpack
from occ.compiler.ir.meaning import build_te, expand_composite
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region
from occ.compiler.ir.te import TeFunc
from occ.compiler.ir.value import Value, Weight


class Interpreter:
    """Runs a module of a stage from `inferred` to `layout`; te functions of ops are built once and kept."""

    def __init__(self, m: Module) -> None:
        self.m = m
        self._te: dict[Op, tuple[TeFunc, list[Value]]] = {}
        self._expanded: dict[Op, tuple[Region, Sequence[Value]]] = {}

    def run(self, inputs: Sequence[np.ndarray], dims: Mapping[str, int]) -> list[np.ndarray]:
        """The results of `main`.

        Args:
            inputs: an array for each argument.
            dims: values of the symbolic dims.

        Raises:
            RunError: OCC0504 a node met data that it cannot work on.
        """
        env = dict(zip(self.m.main.args, inputs, strict=True))
        return self._region(self.m.main.body, env, dims)

    def _region(self, region: Region, env: dict[Value, np.ndarray], dims: Mapping[str, int]) -> list[np.ndarray]:
        last_use = {v: op for op in region for v in op.inputs}
        for op in region.body:
            env.update(zip(op.results, self.op(op, env, dims), strict=True))
            for v in op.inputs:
                if last_use[v] is op and v not in region.args:
                    env.pop(v, None)
        return [_read(v, env) for v in region.yields]

    def op(self, op: Op, env: dict[Value, np.ndarray], dims: Mapping[str, int]) -> list[np.ndarray]:
        """The results of one op, its operands in `env`."""
        if op.name == "fuse":
            (region,) = op.regions
            given = dict(zip(region.args, (_read(v, env) for v in op.inputs), strict=True))
            return self._region(region, env | given, dims)
        if op.spec.composite is not None:
            return self._composite(op, env, dims)
        if "view" in op.spec.tags:
            shape = [evaluate(d, dims) for d in op.result.tensor.dims]
            return [_read(op.inputs[0], env).reshape(shape)]
        if op not in self._te:
            self._te[op] = _te_of(op)
        f, params = self._te[op]
        return run_te(f, [_read(v, env) for v in params], dims)

    def _composite(self, op: Op, env: dict[Value, np.ndarray], dims: Mapping[str, int]) -> list[np.ndarray]:
        if op not in self._expanded:
            region = Region()
            results = expand_composite(op, GraphBuilder(region, loc=op.loc), op.operands)
            region.insert(Op("yield", results[: len(op.results)], {}, ()))
            self._expanded[op] = (region, results)
        return self._region(self._expanded[op][0], dict(env), dims)


def _te_of(op: Op) -> tuple[TeFunc, list[Value]]:
    inputs = list(dict.fromkeys(op.inputs))
    f = build_te(op.name, [op], inputs, op.results)
    loaded = [v for v in inputs if not (isinstance(v, Weight) and v.data.size == 1 and v.tensor.dtype.kind in "fiub")]
    by_name = {f"p{k}": v for k, v in enumerate(loaded)}
    return f, [by_name[p.name] for p in f.params]


def _read(value: Value, env: Mapping[Value, np.ndarray]) -> np.ndarray:
    if isinstance(value, Weight):
        return unpack(
            value.data, value.tensor.layout, value.data.shape if value.tensor.layout.is_row_major else _static(value)
        )
    return env[value]


def _static(value: Value) -> tuple[int, ...]:
    return tuple(int(d) for d in value.tensor.dims)  # pyright: ignore[reportArgumentType]
