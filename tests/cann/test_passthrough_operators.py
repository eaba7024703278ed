"""Operators of AMCT and torch_npu that no ONNX operator stands for: nodes of the graph as their prototypes have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from simulating import built, worst

from occ.compiler.codegen_cann.graph.prototypes import prototypes
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.compiler.frontend.signature import Overrides
from occ.compiler.ge_simulator.reader import read
from occ.runtime.errors import RunError

F, F16 = TensorProto.FLOAT, TensorProto.FLOAT16
Ports = Sequence[tuple[str, int, Sequence[Any]]]


def node_model(
    kind: str, inputs: Ports, outputs: Ports, domain: str = "npu", given: Sequence[str] | None = None, **attrs: Any
) -> onnx.ModelProto:
    """One node between a Neg of its first input and a Neg of its first output."""
    first, result = inputs[0], outputs[0]
    names = ["a", *(n for n, _, _ in inputs[1:])] if given is None else given
    made = [n for n, _, _ in outputs]
    nodes = [
        helper.make_node("Neg", [first[0]], ["a"]), helper.make_node(kind, names, made, name="passed", domain=domain, **attrs),
        helper.make_node("Neg", [result[0]], ["y"]),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info(*p) for p in inputs], [info("y", *result[1:])], value_info=[info(*p) for p in outputs]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)] if domain else [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def graph_of(made: Any) -> Any:
    return next(iter(read(made.files[made.manifest.parts[0].air]).values()))


def test_an_operator_that_the_simulator_knows_gives_its_numbers():
    model = node_model("SwiGlu", [("x", F, [4, 16])], [("r", F, [4, 8])], dim=-1)
    x = np.random.default_rng(3).standard_normal((4, 16), np.float32)
    made = built(model)
    assert (made.manifest.summary["device_parts"], made.manifest.summary["cpu_parts"]) == (1, 0)
    left, right = np.split(-x, 2, -1)
    got = list(open_session(made, 1, simulate=True).run({"x": x}).values())
    assert worst(got, [-(left / (1 + np.exp(-left)) * right)]) < 1e-6


@pytest.mark.parametrize("dtype", [F, F16])
def test_names_attributes_and_outputs_left_out(dtype: int):
    """Truth values are integers in ONNX; of a result that is left out GE finds the shape."""
    boxes = [("x", dtype, [4, 8]), ("g", dtype, [4, 8])]
    model = node_model("NPUCiou", boxes, [("r", dtype, [1, 8])], domain="", trans=1, is_cross=0, mode="iou")
    made = built(model)
    (node,) = [n for n in graph_of(made).nodes if n.type == "CIoU"]
    assert (node.attrs["trans"], node.attrs["is_cross"], node.attrs["mode"]) == (True, False, "iou")
    assert [d.shape for d in node.output_descs] == [(1, 8), (-2,)]
    assert "passed" in node.name
    with pytest.raises(RunError, match="does not implement CIoU") as e:
        open_session(made, 1, simulate=True)
    assert "on a device" in str(e.value)


def test_dynamic_and_absent_inputs():
    parts = [(n, F, [2, 3]) for n in ("x", "b", "c")]
    made = built(node_model("ConcatD", parts, [("r", F, [2, 9])], concat_dim=1, N=3))
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((2, 3), np.float32) for n, _, _ in parts}
    got = list(open_session(made, 1, simulate=True).run(given).values())
    assert worst(got, [-np.concatenate([-given["x"], given["b"], given["c"]], 1)]) == 0
    norm = [("x", F16, [2, 8, 4, 4]), ("g", F16, [8]), ("b", F16, [8])]
    made = built(node_model("NPUGroupNormSilu", norm, [("r", F16, [2, 8, 4, 4])], given=["a", "", "b"], num_groups=2))
    (node,) = [n for n in graph_of(made).nodes if n.type == "GroupNormSilu"]
    assert [e is None for e in node.inputs] == [False, True, False]


def test_the_type_may_follow_from_the_operand():
    model = node_model("NPUGeluV2", [("x", F, [2, 3])], [("r", F, [2, 3])], approximate="tanh")
    del model.graph.value_info[:]
    built(model)


def test_extents_may_have_the_names_of_those_of_inputs():
    model = node_model("SwiGlu", [("x", F, ["n", 16])], [("r", F, ["n", 8])])
    for options in ({"dynamic_ranges": "n=1..8"}, {"dynamic_batch_size": "2,4"}):
        session = open_session(built(model, **options), 1, simulate=True)
        assert next(iter(session.run({"x": np.ones((4, 16), np.float32)}).values())).shape == (4, 8)
    made = Compilation(model, Settings("ascend910b", overrides=Overrides(dims={"n": 3}))).artifact()
    assert made.manifest.outputs[0].shape == [3, 8]


def test_each_row_of_what_torch_npu_writes_is_read_or_refused_with_a_reason():
    from occ.compiler.codegen_cann.mapping import passthrough

    assert set(passthrough._NAMES.values()) <= set(prototypes())
    for name in sorted(passthrough._SEVERAL):
        with pytest.raises(CompileError, match=f"`{name}` stands for several GE operators"):
            built(node_model(name, [("x", F, [2, 3])], [("r", F, [2, 3])]))


@pytest.mark.parametrize(
    ("kind", "attrs", "reason"),
    [
        ("NPUFoo", {}, "GE has no operator `Foo`, for which `NPUFoo` would stand"),
        ("SwiGlu", {"dims": 1}, "GE `SwiGlu` has no attribute `dims`; it has dim"),
        ("SwiGlu", {"dim": "last"}, "attribute `dim` of GE `SwiGlu` is Int, not 'last'"),
        ("SwiGlu", {"dim": [1]}, "attribute `dim` of GE `SwiGlu` is Int"),
        ("ROIAlign", {"spatial_scale": 0.5, "pooled_height": 2}, "needs the input `rois`"),
        ("AddRmsNorm", {}, "GE `AddRmsNorm` needs the input `x2`"),
        ("Equal", {}, "needs the input `x2`"),
        ("AscendRequant", {}, "needs the input `req_scale`"),
        ("FileConstant", {"file_path": "/etc/passwd"}, "GE has no operator `FileConstant`"),
        ("While", {}, "GE has no operator `While`"),
        ("Data", {"index": 0}, "GE has no operator `Data`"),
    ],
)
def test_what_a_prototype_does_not_take_is_refused(kind: str, attrs: dict[str, Any], reason: str):
    with pytest.raises(CompileError, match=reason) as e:
        built(node_model(kind, [("x", F, [2, 4])], [("r", F, [2, 4])], **attrs))
    text = str(e.value)
    assert f"`{kind}`" in text
    assert "passed" in text
    assert "no CPU has it" in text


def test_a_missing_attribute_and_another_element_type():
    rois = [("x", F, [1, 4, 8, 8]), ("b", F, [3, 5])]
    with pytest.raises(CompileError, match="GE `ROIAlign` needs the attribute `pooled_width`"):
        built(node_model("NPURoiAlign", rois, [("r", F, [3, 4, 2, 2])], spatial_scale=0.5, pooled_height=2))
    with pytest.raises(CompileError, match="`x` of GE `SwiGlu` takes BF16, FLOAT, FLOAT16, not INT32"):
        built(node_model("SwiGlu", [("x", TensorProto.INT32, [2, 4])], [("r", TensorProto.INT32, [2, 2])]))
    with pytest.raises(CompileError, match="GE `SwiGlu` takes 1 inputs, not 2"):
        built(node_model("SwiGlu", [("x", F, [2, 4]), ("b", F, [1])], [("r", F, [2, 2])]))


def test_a_result_whose_type_nothing_states():
    model = node_model("SwiGlu", [("x", F, [4, 16])], [("r", F, [4, 8])])
    del model.graph.value_info[:]
    with pytest.raises(
        CompileError, match="the file does not declare the type of `r`, a result of the device's operator `SwiGlu`"
    ) as e:
        built(model)
    assert "value_info" in str(e.value)
    named = node_model("SwiGlu", [("x", F, [4, 16])], [("r", F, ["unknown", 8])])
    with pytest.raises(CompileError, match="does not declare the type"):
        built(named)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit", "interp"])
def test_other_targets_say_whose_operator_it_is(target: str):
    model = node_model("SwiGlu", [("x", F, [4, 16])], [("r", F, [4, 8])])
    with pytest.raises(
        CompileError, match=f"`SwiGlu` is an operator of Ascend devices, which `{target}` does not have"
    ) as e:
        Compilation(model, Settings(target)).artifact()
    assert "-t ascend310p" in str(e.value)


def test_names_that_only_look_alike_stay_unknown():
    for name in ("Npu", "NPU", "Ascendant", "npuFoo", "Foo"):
        model = node_model(name, [("x", F, [2])], [("r", F, [2])], domain="")
        with pytest.raises(CompileError, match="unknown operator"):
            built(model)


def test_hostile_attributes_are_escaped(tmp_path: Path):
    words = "\"; rm -rf /; '\n`$(touch x)`\\"
    boxes = [("x", F, [4, 8]), ("g", F, [4, 8])]
    made = built(node_model("NPUCiou", boxes, [("r", F, [1, 8])], mode=words), dump_graphs="true")
    (node,) = [n for n in graph_of(made).nodes if n.type == "CIoU"]
    assert node.attrs["mode"] == words
    source = made.files["src/part0.cpp"].decode()
    assert words not in source
    assert all("touch" not in " ".join(p.command) for p in made.manifest.parts)
    with pytest.raises(CompileError, match="has no attribute") as e:
        built(node_model("NPUCiou", boxes, [("r", F, [1, 8])], **{words * 40: 1}))
    assert len(str(e.value)) < 2000
    assert "\n`$(" not in str(e.value)


def test_a_text_of_the_module_reads_back():
    model = node_model("SwiGlu", [("x", F, [4, 16])], [("r", F, [4, 8])], dim=-1)
    from occ.compiler.ir.printer import module_text

    text = module_text(Compilation(model, Settings("ascend910b")).advance("canonical"))
    assert "device_operator" in text
    x = np.ones((4, 16), np.float32)
    again = open_session(Compilation(text, Settings("ascend910b")).artifact(), 1, simulate=True)
    assert next(iter(again.run({"x": x}).values())).shape == (4, 8)
