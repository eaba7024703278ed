"""Random models of one node, for the operators with a te body: empty tensors, rank 0, broadcasting, negative axes and
steps, large pads. Targets agree with onnx.reference. The seed is fixed, and how many models ran is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx.reference
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from node_makers import MAKERS, Node
from onnx import ModelProto, helper, numpy_helper
from onnx.defs import onnx_opset_version

import occ
from occ.compiler.ir.dtype import from_numpy

SEED = 20261
# Targets, and how many examples each has.
RUNS = [
    ("interp", 12),
    ("cpu-jit", 4),
    pytest.param("cpu-jit", 12, marks=pytest.mark.more),
    pytest.param("cpu", 2, marks=pytest.mark.slow),
]
COUNTS: Counter[str] = Counter()


def model(name: str, node: Node) -> tuple[ModelProto, dict[str, np.ndarray]]:
    operands, weights, attrs, n = node
    feed = {f"x{k}": x for k, x in enumerate(operands) if k not in weights}
    infos = [helper.make_tensor_value_info(k, from_numpy(x.dtype).onnx, x.shape) for k, x in feed.items()]
    outputs = [f"y{k}" for k in range(n)]
    made = helper.make_node(name, [f"x{k}" for k in range(len(operands))], outputs, **attrs)
    graph = helper.make_graph(
        [made], name, infos, [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(operands[k], f"x{k}") for k in sorted(weights)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", onnx_opset_version())]), feed


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    print(f"\nrandom nodes: seed {SEED}, {sum(COUNTS.values())} runs of {len(COUNTS)} operators and targets")


@pytest.mark.parametrize(("target", "examples"), RUNS)
@pytest.mark.parametrize("name", MAKERS)
def test_random_node_gives_what_the_reference_gives(name: str, target: str, examples: int) -> None:
    @seed(SEED)
    @settings(
        max_examples=examples,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        node = MAKERS[name](data.draw, name)
        made, feed = model(name, node)
        with np.errstate(all="ignore"):
            expected = onnx.reference.ReferenceEvaluator(made).run(None, feed)
        got = occ.compile(made, target).run(feed)
        COUNTS[f"{name} {target}"] += 1
        for x, y in zip(got.values(), map(np.asarray, expected), strict=True):
            assert x.shape == y.shape
            assert x.dtype == y.dtype
            size = float(np.max(np.abs(y[np.isfinite(y)]), initial=1.0)) if y.dtype.kind == "f" else 1.0
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-6 * size)

    check()
