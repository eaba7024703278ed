"""Kernels of many models built together, so that each build afterwards needs no compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide import toolchain
from occ.compiler.codegen_halide.build import setup_for
from occ.compiler.codegen_halide.compile_kernels import compile_batch
from occ.compiler.codegen_halide.kernels import Kernel, units
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import compile_model
from occ.compiler.tuning.warm import warm

pytestmark = pytest.mark.toolchain


def model(op: str, n: int, inputs: int = 1) -> onnx.ModelProto:
    names = ["x", "y"][:inputs]
    infos = [helper.make_tensor_value_info(i, TensorProto.FLOAT, [n]) for i in names]
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [n])
    graph = helper.make_graph([helper.make_node(op, names, ["z"])], "g", infos, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_builds_after_a_batch_need_no_compiler(
    tools_only: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools_only("cache")
    models = [("abs", model("Abs", 5)), ("neg", model("Neg", 6)), ("same", model("Abs", 5)), ("bad", model("Nope", 5))]
    made = warm(models, batch=2)
    assert (made.models, made.compiled, made.cached, made.failed) == (3, 2, 0, {})
    assert "unknown operator" in str(made.refused["bad"])

    def no_tool(*_: object, **__: object) -> None:
        raise AssertionError("a tool was called")

    monkeypatch.setattr(toolchain, "run_all", no_tool)
    for module in ("build", "compile_kernels"):
        monkeypatch.setattr(f"occ.compiler.codegen_halide.{module}.run_all", no_tool)
    x = np.arange(-2, 3, dtype=np.float32)
    np.testing.assert_array_equal(compile_model(models[0][1], Settings("cpu")).run({"x": x})["z"], np.abs(x))
    assert warm(models[:2]).cached == 2


def test_kernel_that_does_not_compile_fails_alone(tools_only: Callable[[str], Path]) -> None:
    cache = Cache(tools_only("cache"))
    setup, _ = setup_for("host", cache)
    kernels = []
    for n in (5, 6, 7, 8):  # few enough that each has a kernel of its own
        c = Compilation(model("Add", n, 2), Settings("cpu"))
        c.advance("lowered")
        kernels += [setup.kernel(f) for f in c.module.te.values()]
    cpp, halide = kernels[1], kernels[2]
    kernels[1] = replace(cpp, text=cpp.text.replace("// The schedule", "this is no C++;"))
    kernels[2] = replace(halide, text=halide.text.replace("// The schedule", 'y.vectorize(Var("nothing_like_it"), 8);'))
    failed = compile_batch(kernels, setup, cache)
    assert set(failed) == {cpp.name, halide.name}
    assert "at `is no C++;`" in str(failed[cpp.name])
    assert "nothing_like_it" in str(failed[halide.name])
    assert [cache.has("kernel", k.key, ".o") for k in kernels] == [True, False, False, True]


@pytest.mark.parametrize(("length", "count"), [(100, 1), (5_000, 2)])
def test_kernels_are_shared_out_among_units_only_where_that_takes_less_time(length: int, count: int) -> None:
    texts = [f"// kernel {k}".ljust(length) for k in range(4)]
    made = units([Kernel(f"k{k}", text, "") for k, text in enumerate(texts)])
    assert len(made) == count
    assert [sum(text in unit for unit in made.values()) for text in texts] == [1] * 4
