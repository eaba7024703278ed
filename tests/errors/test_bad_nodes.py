"""Nodes, tensors and functions that ONNX does not allow: one diagnostic each, never an internal error or an exception."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of
from onnx import TensorProto, helper

import occ
from occ.compiler.diagnostics import CompileError

IMAGE = "float[1, 2, 4, 4] x"
# A node on `x`, and what is said of it.
NODES = {
    "Cast <to = 99> (x)": "`to` of `Cast` is not an element type",
    "Conv <strides = [0, 0]> (x, k)": "`strides` of `Conv` is (0, 0)",
    "Conv <group = 0> (x, k)": "`group` of `Conv` is 0",
    "ConvTranspose <group = 0> (x, k)": "`group` of `ConvTranspose` is 0",
    "ConvTranspose <strides = [1]> (x, k)": "`ConvTranspose`",
    "MaxPool <kernel_shape = [2, 2], strides = [0, 1]> (x)": "`strides` of `MaxPool` is (0, 1)",
    "LpPool <kernel_shape = [2, 2], p = 0> (x)": "`p` of `LpPool` is 0",
    "GlobalLpPool <p = 0> (x)": "`p` of `GlobalLpPool` is 0",
    "DepthToSpace <blocksize = 0> (x)": "`blocksize` of `DepthToSpace` is 0",
    "LRN <size = 0> (x)": "`size` of `LRN` is 0",
    "Split <num_outputs = -9> (x)": "`num_outputs` of `Split` is -9",
    "ScatterND <reduction = \"foo\"> (x, i, x)": "`reduction` of `ScatterND` is 'foo'",
    "ScatterElements <reduction = \"foo\"> (x, j, x)": "`reduction` of `ScatterElements` is 'foo'",
    "GatherND <batch_dims = -1> (x, i)": "`batch_dims` of `GatherND` is -1",
    "RNN <direction = \"sideways\", hidden_size = 2> (s, s, s)": "`direction` of `RNN` is 'sideways'",
    "BatchNormalization (x, k, k, k, k)": "`BatchNormalization` has no result",
    "Softmax (scalar)": "`Softmax`",
}  # fmt: skip


@pytest.mark.parametrize(("node", "said"), NODES.items(), ids=[n.split()[0] + str(k) for k, n in enumerate(NODES)])
def test_nodes(node: str, said: str) -> None:
    weights = {
        "k": np.ones((2, 2, 1, 1), np.float32), "i": np.zeros((1, 1), np.int64), "j": np.zeros((1, 2, 4, 4), np.int64),
        "s": np.ones((1, 4, 4), np.float32), "scalar": np.array(1, np.float32),
    }  # fmt: skip
    used = {k: v for k, v in weights.items() if k in node.rpartition("(")[2].rstrip(")").split(", ")}
    model = model_of(f"g ({IMAGE}) => (y) {{ y = {node} }}", used)
    refused(model, said)


def refused(model: onnx.ModelProto | str, *said: str) -> None:
    with pytest.raises(CompileError) as found:
        occ.compile(model, "interp")
    assert all(d.code != "OCC0901" for d in found.value.diagnostics)
    for text in said:
        assert text in str(found.value)


def test_more_results_than_the_operator_has() -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y, z = Relu (x) }")
    refused(model, "`Relu` has 1 result, not 2")


def test_a_node_without_results() -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu (x) }")
    model.graph.node.append(helper.make_node("Relu", ["x"], []))
    refused(model, "`Relu` has no result")


def test_an_attribute_without_a_type() -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y = LeakyRelu <alpha = 0.5> (x) }")
    model.graph.node[0].attribute[0].type = 0
    refused(model, "attribute `alpha` has no type")


@pytest.mark.parametrize("indices", [[7], [-9], [[0, 5]], [[0, 0, 0]]])
def test_sparse_tensors(indices: list[int]) -> None:
    model = model_of("g (float[2, 2] x) => (float[2, 2] y) { y = Add (x, w) }")
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    at = np.array(indices, np.int64)
    places = helper.make_tensor("at", TensorProto.INT64, at.shape, at.ravel().tolist())
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 2]))
    refused(model, "the sparse tensor `w` does not fit its shape")


def functions(calls: dict[str, list[str]]) -> onnx.ModelProto:
    """A model that calls `f0`; each function calls others one after the other."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = []
    for name, called in calls.items():
        nodes = [helper.make_node(c, [f"v{k}"], [f"v{k + 1}"], domain="own") for k, c in enumerate(called)]
        nodes.append(helper.make_node("Relu", [f"v{len(called)}"], ["y"]))
        made.append(helper.make_function("own", name, ["v0"], ["y"], nodes, opsets))
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu (x) }")
    node = helper.make_node("f0", ["x"], ["y"], domain="own")
    del model.graph.node[:]
    model.graph.node.append(node)
    model.opset_import.append(opsets[1])
    model.functions.extend(made)
    return model


def test_functions_that_call_themselves() -> None:
    refused(functions({"f0": ["f1"], "f1": ["f0"]}), "calls itself")


def test_functions_that_double() -> None:
    refused(functions({f"f{k}": [f"f{k + 1}"] * 2 for k in range(25)} | {"f25": []}), "nodes, more than 1000000")


def external(folder: Path, shape: list[int], **where: str) -> str:
    """A model whose weight is in another file."""
    model = model_of("g (float[4] x) => (y) { y = Add (x, w) }")
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in where.items():
        tensor.external_data.add(key=key, value=value)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return str(folder / "m.onnx")


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    refused(external(tmp_path, [4], location="circle"), "external data `circle`")
    refused(external(tmp_path, [4], location="x" * 5000), "external data")
    (tmp_path / "data").write_bytes(bytes(16))
    refused(external(tmp_path, [2**40, 2**40], location="data"), "external data `data`")
    refused(external(tmp_path, [2**40, 2**40], location="data", length="16"), "external data `data`")
    with open(tmp_path / "sparse", "wb") as f:
        os.truncate(f.fileno(), 1 << 40)
    refused(external(tmp_path, [4], location="sparse", length=str(1 << 40)), "16")
