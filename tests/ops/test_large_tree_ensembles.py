"""Trees with thousands of nodes: what a build does for each number of an attribute must not be slow."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import onnxruntime
import pytest

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.frontend.onnx import import_model
from occ.compiler.frontend.text import parse
from occ.compiler.ir.printer import module_text
from occ.runtime.attributes import decode, encode

TREES, DEPTH = 200, 8


def forest() -> onnx.ModelProto:
    """Complete binary trees over four features."""
    inner, nodes = 2 ** (DEPTH - 1) - 1, 2**DEPTH - 1
    rng = np.random.default_rng(0)
    one = np.arange(nodes)
    is_leaf = np.tile(one >= inner, TREES)
    trees = np.repeat(np.arange(TREES), nodes)

    def children(k: int) -> list[int]:
        return np.where(is_leaf, 0, 2 * np.tile(one, TREES) + k).tolist()

    node = onnx.helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=trees.tolist(), nodes_nodeids=np.tile(one, TREES).tolist(),
        nodes_featureids=rng.integers(0, 4, len(trees)).tolist(), nodes_values=rng.standard_normal(len(trees)).tolist(),
        nodes_modes=["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
        nodes_truenodeids=children(1), nodes_falsenodeids=children(2),
        target_treeids=trees[is_leaf].tolist(), target_nodeids=np.tile(one, TREES)[is_leaf].tolist(),
        target_ids=[0] * int(is_leaf.sum()), target_weights=rng.standard_normal(int(is_leaf.sum())).tolist(),
    )  # fmt: skip
    return model_of(node, 1, 1, ["n", 4], ["n", 1])


def model_of(node: onnx.NodeProto, elem: int, out: int, shape: list[object], result: list[object]) -> onnx.ModelProto:
    x, y = (onnx.helper.make_tensor_value_info(*p) for p in (("x", elem, shape), ("y", out, result)))
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)


@contextmanager
def calls_of_python() -> Iterator[Counter[str]]:
    """Counts calls of functions that are written in Python: work for each number of a list shows, whatever the machine."""
    counted = Counter[str]()
    sys.setprofile(lambda _frame, event, _arg: counted.update((event,)))
    try:
        yield counted
    finally:
        sys.setprofile(None)


# The interpreter makes its tables of nodes number by number.
@pytest.mark.thinned
@pytest.mark.parametrize(("target", "most"), [("interp", 500_000), ("cpu-jit", 100_000)])
def test_a_forest_of_fifty_thousand_nodes_is_built_at_once(target: str, most: int) -> None:
    model = forest()
    small = onnx.helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[1], values_int64s=[2])
    occ.compile(model_of(small, 7, 7, ["n"], ["n"]), target)  # reads modules and the grammar
    with calls_of_python() as counted:
        session = occ.compile(model, target)
    assert counted["call"] < most
    x = np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)
    right = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(session.run({"x": x})["y"], right, rtol=1e-5, atol=1e-5)


FLOATS = (*np.float32(np.random.default_rng(2).standard_normal(98)).tolist(), -0.0, float(np.float32(1e30)))
KEYS = {
    "words": ("LEAF", "größer", "a_1", "") * 25, "texts": ("it's", '"', "a, b", "\\") * 25,
    "integers": (*range(98), -3, 2**60), "floats": FLOATS, "special": (*FLOATS[:98], float("inf"), float("nan")),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_long_lists_are_read_as_they_are_written(kind: str) -> None:
    keys = KEYS[kind]
    name = {str: "keys_strings", int: "keys_int64s", float: "keys_floats"}[type(keys[0])]
    elem = {str: 8, int: 7, float: 1}[type(keys[0])]
    attrs = {name: keys, "values_int64s": range(100)}
    node = onnx.helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    m = import_model(model_of(node, elem, 7, ["n"], ["n"]))
    [op] = [op for op in m.walk() if name in op.attrs]
    assert repr(op.attrs[name]) == repr(keys)
    again = parse(text := module_text(m))
    assert module_text(again) == text
    assert [repr(op.attrs[name]) for op in again.walk() if name in op.attrs] == [repr(keys)]
    assert repr(decode(json.loads(json.dumps(encode(keys))))) == repr(keys)


def test_long_lists_may_be_written_by_hand() -> None:
    text = """module @m {stage="imported"} { func @main(%x: f32[n]) -> f32[n] {
        %y = ai.onnx.ml.Scaler(%x) {offset=[LIST], scale=[1.0]} : f32[n]
        return %y } dim n "n" }"""
    for item, value in (("1.", 1.0), ("  -2 ", -2), ("--1", None), ("1 2", None)):
        written = text.replace("LIST", ",".join([item] * 200))
        if value is None:
            with pytest.raises(CompileError, match="OCC0601"):
                parse(written)
        else:
            [op] = [op for op in parse(written).walk() if "offset" in op.attrs]
            assert op.attrs["offset"] == (value,) * 200
