"""Every operator with operands of any extents: what does not fit is a constraint or a check, and no kernel leaves a tensor.

The first case that ONNX has of each operator has a symbol for each axis of its inputs. Its kernels are looked at for sizes that the
constraints of the model allow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from onnx import ModelProto, helper
from suite import node_cases

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.dim import evaluate, symbols
from occ.compiler.ir.module import Constraint, Func
from occ.compiler.ir.te.reach import reach_problem

_TRIES, _SIZES, _KEPT = 400, (1, 2, 3, 4, 6), 25


def cases() -> dict[str, ModelProto]:
    """By operator; those of which something hangs on two tensors, as the values of others are asked for by the build."""
    found: dict[str, ModelProto] = {}
    for c in node_cases():
        inputs = [i.type.tensor_type for i in c.model.graph.input if i.type.HasField("tensor_type")]
        if "_expanded" not in c.name and sum(bool(t.shape.dim) for t in inputs) > 1:
            found.setdefault("-".join(n.op_type for n in c.model.graph.node), c.model)
    return found


def of_any_extent(model: ModelProto) -> ModelProto:
    """The model with a symbol for each axis of its inputs."""
    made = ModelProto()
    made.CopyFrom(model)
    for i in made.graph.input:
        for k, d in enumerate(i.type.tensor_type.shape.dim):
            d.dim_param = f"{i.name}_{k}"
    for o in made.graph.output:
        o.CopyFrom(helper.make_empty_tensor_value_info(o.name))
    return made


def holds(c: Constraint, env: Mapping[str, int]) -> bool:
    try:
        return evaluate(c.lhs, env) == evaluate(c.rhs, env)
    except ZeroDivisionError:
        return False


def sizes(names: list[str], relations: list[Constraint]) -> Iterator[dict[str, int]]:
    """Sizes that the constraints allow: many of them are equal."""
    rng, left = random.Random(0), _KEPT
    for _ in range(_TRIES):
        share, common = rng.random(), rng.choice(_SIZES)
        env = {n: common if rng.random() < share else rng.choice(_SIZES) for n in names}
        if left and all(holds(c, env) for c in relations):
            left -= 1
            yield env


def problems(compilation: Compilation, func: Func) -> Iterator[str]:
    m = compilation.module
    relations = [c for c in m.constraints if c.func == func.name]
    for op in (op for op in func.body.body if "te" in op.attrs):
        f, dims = m.te[op.attrs["te"]], op.attrs.get("dims", ())
        names = sorted(symbols(*dims, *(d for c in relations for d in (c.lhs, c.rhs))))
        for env in sizes(names, relations):
            given = {n: evaluate(d, env) for n, d in zip(f.dims, dims, strict=True)}
            if min(given.values(), default=0) >= 0 and (text := reach_problem(f, given)):
                yield f"{f.name} {text} for {env}"
                break


def test_kernels_stay_within_their_tensors() -> None:
    found: dict[str, list[str]] = {}
    for name, model in cases().items():
        compilation = Compilation(of_any_extent(model), Settings("cpu-jit", cache=False))
        try:
            compilation.advance("scheduled")
        except CompileError:
            continue  # the build has to know some of the extents
        found[name] = [p for func in compilation.module.funcs.values() for p in problems(compilation, func)]
    assert len(found) > 60
    assert {name: texts for name, texts in found.items() if texts} == {}
