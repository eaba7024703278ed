"""Models whose inputs have extents that nobody knows, and whether their kernels stay within the tensors at any of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from onnx import ModelProto, helper

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.dim import evaluate, symbols
from occ.compiler.ir.func import Constraint, Func
from occ.compiler.ir.te.bounds_check import out_of_bounds_read

_TRIES, _SIZES, _KEPT = 400, (1, 2, 3, 4, 6), 25
Kept = Callable[[int, int, int], bool]  # (input, axis, rank) -> whether the extent stays as it is
NONE: Kept = lambda j, k, n: False
# Where the build has to know some of the extents: sizes of a head, of a kernel, of a weight.
SOME: tuple[Kept, ...] = (
    lambda j, k, n: k == n - 1 or (n == 4 and k == 1),
    lambda j, k, n: k > 0,
    lambda j, k, n: j == 1,
    lambda j, k, n: j == 1 and k > 0,
)


def of_any_extent(model: ModelProto, kept: Kept = NONE) -> ModelProto:
    """The model with a symbol for each axis of its inputs that is not kept."""
    made = ModelProto()
    made.CopyFrom(model)
    for j, i in enumerate(made.graph.input):
        dims = i.type.tensor_type.shape.dim
        for k, d in enumerate(dims):
            if not kept(j, k, len(dims)):
                d.dim_param = f"{i.name}_{k}"
    for o in made.graph.output:
        o.CopyFrom(helper.make_empty_tensor_value_info(o.name))
    return made


def outside(model: ModelProto) -> list[str] | None:
    """How kernels of a model leave their tensors at sizes that its constraints allow; None if it does not build."""
    compilation = Compilation(model, Settings("cpu-jit", cache=False))
    try:
        compilation.advance("scheduled")
    except CompileError as e:
        if any(d.code == "OCC0901" for d in e.diagnostics):
            raise
        return None
    return [p for func in compilation.module.funcs.values() for p in _problems(compilation, func)]


def _holds(c: Constraint, env: Mapping[str, int]) -> bool:
    try:
        return evaluate(c.lhs, env) == evaluate(c.rhs, env)
    except ZeroDivisionError:
        return False


def _sizes(names: list[str], relations: list[Constraint]) -> Iterator[dict[str, int]]:
    """Sizes that the constraints allow: many of them are equal."""
    rng, left = random.Random(0), _KEPT
    for _ in range(_TRIES):
        share, common = rng.random(), rng.choice(_SIZES)
        env = {n: common if rng.random() < share else rng.choice(_SIZES) for n in names}
        if left and all(_holds(c, env) for c in relations):
            left -= 1
            yield env


def _problems(compilation: Compilation, func: Func) -> Iterator[str]:
    m = compilation.module
    relations = [
        c for c in m.constraints if c.func in (func.name, "main")
    ]  # those of main hold before any function runs
    for op in (op for op in func.body.body if "te" in op.attrs):
        f, dims = m.te[op.attrs["te"]], op.attrs.get("dims", ())
        names = sorted(symbols(*dims, *(d for c in relations for d in (c.lhs, c.rhs))))
        for env in _sizes(names, relations):
            given = {n: evaluate(d, env) for n, d in zip(f.dims, dims, strict=True)}
            if min(given.values(), default=0) >= 0 and (text := out_of_bounds_read(f, given)):
                yield f"{f.name} {text} for {env}"
                break
