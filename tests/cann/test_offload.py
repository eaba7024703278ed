"""Parts go to the device only if they take less time there, by estimate."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from building import model_of, reference
from simulating import built, simulated, worst

from occ.compiler.codegen_cann.device_graphs import graph_of
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.codegen_cann.parts.cost import Processor, estimate, operations
from occ.compiler.codegen_cann.parts.partition import partition
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, Settings

RNG = np.random.default_rng(4)
HOST = Processor(100e9, 20e9)


def large(n: int = 2048) -> onnx.ModelProto:
    return model_of(
        f"g (float[{n}, {n}] x) => (float[{n}, {n}] y) {{ a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w) }}",
        {"w": RNG.standard_normal((n, n), dtype=np.float32)},
    )


def small() -> onnx.ModelProto:
    return model_of("g (float[4, 4] x) => (float[4, 4] y) { a = Relu(x) y = Neg(a) }")


def graph(model: onnx.ModelProto, target: str = "ascend310p"):
    m = Compilation(model, Settings(target)).advance("fused")
    (part,) = partition(m, lambda _: True)
    return graph_of(m, part, AscendOptions.of(target))


def test_operations_are_counted():
    nodes = {n.type: n for n in graph(large(64)).nodes}
    assert operations(nodes["MatMulV2"]) == 2 * 64**3
    conv = model_of(
        "g (float[1, 3, 8, 8] x) => (float[1, 5, 8, 8] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
        {"w": np.ones((5, 3, 3, 3), np.float32)},
    )
    assert operations(next(n for n in graph(conv).nodes if n.type == "Conv2D")) == 2 * 5 * 64 * 27


def test_large_products_pay_and_small_nodes_do_not():
    much = estimate(graph(large()), "ascend310p", half=True, cpu=HOST)
    assert much.pays
    assert much.copies == pytest.approx(2 * 2048 * 2048 * 4 / 16e9)
    assert much.cpu == pytest.approx(3 * 2 * 2048**3 / 100e9, rel=0.01)
    assert not estimate(graph(small()), "ascend310p", half=True, cpu=HOST).pays


def test_what_does_not_pay_runs_on_the_cpu():
    made = built(small(), "ascend910b", offload="cost")
    assert made.manifest.summary["device_parts"] == 0
    x = {"x": RNG.standard_normal((4, 4), dtype=np.float32)}
    assert worst(simulated(made, x), reference(small(), x)) == 0
    warnings = Compilation(small(), Settings("ascend910b", options={"offload": "cost"})).check()
    assert len(warnings) == 2
    assert "by estimate" in warnings[0].text()


def test_what_pays_stays_and_is_reported():
    made = built(large(), "ascend910b", offload="cost")
    assert made.manifest.summary["device_parts"] == 1
    (estimated,) = made.manifest.summary["estimates"]
    assert estimated["device"] < estimated["cpu"]
    assert built(small(), "ascend910b").manifest.summary["device_parts"] == 1


def test_one_graph_for_several_sizes_is_not_taken_apart():
    model = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    with pytest.raises(CompileError, match="exclude each other"):
        built(model, offload="cost", dynamic_batch_size="1,2")


def test_the_estimate_is_shown_in_the_summary_the_artifact_and_the_graph(tmp_path, occ_cli):
    onnx.save(large(1024), tmp_path / "m.onnx")
    given = (tmp_path / "m.onnx", "-t", "ascend910b", "-C", "offload=cost")
    done = occ_cli("build", *given, "-o", tmp_path / "m.occ")
    assert "estimate part0: " in done.err
    assert "with the CANN toolkit: build with `--emit om`" in done.err
    (line,) = json.loads(occ_cli("inspect", tmp_path / "m.occ", "--json").out)["estimates"]
    assert re.fullmatch(r"part0: \S+ ms on the device, \S+ ms of them copies; \S+ ms on this CPU", line)
    assert "# by estimate: " in occ_cli("dump", *given, "--stage", "ge").out
    assert "# by estimate: " not in occ_cli("dump", *given[:3], "--stage", "ge").out
