"""Cutting a model into device and CPU parts, the options that decide it, and the dumps that show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import model_of, reference
from simulating import airs, built, simulated, worst

import occ
from occ.compiler.codegen_halide.toolchain import toolchain
from occ.compiler.diagnostics import CompileError
from occ.runtime.artifact import Artifact
from occ.runtime.device_part import DevicePart

Occ = Callable[..., Any]  # the fixture `occ_cli`
RNG = np.random.default_rng(3)
SIZES = {"square": np.array([2, 1, 2, 4]), "flat": np.array([2, 8])}
GRID = RNG.uniform(-1, 1, (2, 2, 4, 2)).astype(np.float32)
# With an operator in the middle that GE does not have.
SANDWICH = """g (float[2, 8] x) => (float[2, 8] y) {
    a = MatMul(x, w1)
    b = Relu(a)
    u = Reshape(b, square)
    f = GridSample <mode = "cubic"> (u, grid)
    r = Reshape(f, flat)
    c = Concat <axis = 1> (r, r)
    d = MatMul(c, w2)
    y = Add(d, b)
}"""
PLAIN = """g (float[4, 64] x) => (float[4, 64] y) {
    a = MatMul(x, w1)
    b = Relu(a)
    c = MatMul(b, w2)
    d = Sigmoid(c)
    e = MatMul(d, w3)
    y = Tanh(e)
}"""


def sandwich() -> onnx.ModelProto:
    weights = {
        **SIZES,
        "grid": GRID,
        "w1": RNG.standard_normal((8, 8), dtype=np.float32) / 4,
        "w2": RNG.standard_normal((16, 8), dtype=np.float32),
    }
    return model_of(SANDWICH, weights)


def plain() -> onnx.ModelProto:
    return model_of(PLAIN, {f"w{k}": RNG.standard_normal((64, 64), dtype=np.float32) / 8 for k in (1, 2, 3)})


def saved(model: onnx.ModelProto, folder: Path) -> str:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


def test_an_op_that_ge_lacks_makes_three_parts():
    model = sandwich()
    x = {"x": RNG.standard_normal((2, 8), dtype=np.float32)}
    made = built(model)
    assert [s.name for s in made.manifest.plan.steps if s.kind in ("device", "cpu_subgraph")] == [
        "part0",
        "cpu0",
        "part1",
    ]
    assert made.manifest.summary["cpu_operators"] == ["GridSample"]
    assert worst(simulated(made, x), reference(model, x)) < 1e-5


def test_what_stays_on_the_device_is_not_copied():
    """`b` is read by the second part too; the device keeps it."""
    steps = built(sandwich()).manifest.plan.steps
    kinds = [s.kind for s in steps]
    assert kinds.count("upload") == 2  # x, and what the CPU subgraph gives
    assert kinds.count("download") == 2  # what the CPU subgraph reads, and the result
    assert kinds.index("sync") < kinds.index("cpu_subgraph")


def test_the_dump_shows_the_parts(occ_cli: Occ, tmp_path: Path):
    done = occ_cli("dump", saved(sandwich(), tmp_path), "-t", "ascend310", "--stage", "ge")
    assert done.code == 0
    heads = [line for line in done.out.splitlines() if line.startswith("#")]
    assert [h.split(":")[0] for h in heads] == ["# part0", "# cpu0", "# part1"]
    assert "GridSample" in done.out
    assert "MatMulV2(x1=" in done.out


def test_without_fallback_the_model_is_refused(occ_cli: Occ, tmp_path: Path):
    path = saved(sandwich(), tmp_path)
    done = occ_cli("build", path, "-t", "ascend310", "-C", "cpu_fallback=off", "-o", tmp_path / "m.occ")
    assert done.code == 3
    assert "OCC0301" in done.err
    assert "`GridSample`" in done.err
    assert not (tmp_path / "m.occ").exists()
    checked = occ_cli("check", path, "-t", "ascend310", "-C", "cpu_fallback=off")
    assert checked.code == 3
    assert "`GridSample`" in checked.err


def test_check_and_build_are_of_one_mind(occ_cli: Occ, tmp_path: Path):
    path = saved(sandwich(), tmp_path)
    done = occ_cli("check", path, "-t", "ascend310")
    assert (done.code, occ_cli("build", path, "-t", "ascend310", "-o", tmp_path / "m.occ").code) == (0, 0)
    assert "warning[OCC0301]: `ascend310` cannot take `GridSample`" in done.err
    (warning,) = json.loads(occ_cli("check", path, "-t", "ascend310", "--json").out)["warnings"]
    assert warning["severity"] == "warning"
    found = occ.capability(path, "ascend310")
    assert (found.ok, found.reasons, len(found.on_cpu)) == (True, (), 1)
    dynamic = saved(model_of("g (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }"), tmp_path)
    for options in ([], ["-C", "dynamic_batch_size=1,2"], ["-C", "dynamic_batch_size=1"]):
        checked = occ_cli("check", dynamic, "-t", "ascend310", *options)
        assert checked.code == occ_cli("build", dynamic, "-t", "ascend310", *options, "-o", tmp_path / "d.occ").code


def test_a_build_without_anything_on_the_device_says_so(occ_cli: Occ, tmp_path: Path):
    path = saved(model_of("g (float[2, 2] x) => (float[m, 2] y) { y = Unique <axis = 0> (x) }"), tmp_path)
    done = occ_cli("build", path, "-t", "ascend310p", "-C", "cpu_fallback=cpu-jit", "-o", tmp_path / "m.occ")
    assert done.code == 0
    assert "warning[OCC0301]: nothing of the model runs on `ascend310p`" in done.err


def test_operators_of_the_device_are_listed(occ_cli: Occ):
    lines = [json.loads(line) for line in occ_cli("ops", "-t", "ascend310p", "--json").out.splitlines()]
    kinds = {line["name"]: line["kind"] for line in lines}
    assert len(kinds) > 150
    assert kinds["Conv"] == kinds["com.microsoft.QGemm"] == "ge"
    assert kinds["HardSwish"] == "ge"
    assert "TfIdfVectorizer" not in kinds


def test_operands_without_elements_are_left_out_of_a_concatenation():
    text = """g (float[2, 0] past, float[2, 4] x) => (float[2, 4] y, float[2, 8] z, float[2, 0] none) {
        none = Relu(past)
        y = Concat <axis = 1> (none, x)
        z = Concat <axis = 1> (x, past, x)
    }"""
    model = model_of(text)
    x = {"past": np.zeros((2, 0), np.float32), "x": RNG.standard_normal((2, 4), dtype=np.float32)}
    made = built(model, cpu_fallback="off")
    assert [i.name for i in made.manifest.parts[0].inputs] == ["x"]
    assert worst(simulated(made, x), reference(model, x)) == 0


def test_a_model_without_outputs_is_built():
    assert (
        simulated(built(model_of("g (float[3, 3] x) => () { t = Trilu(x) }")), {"x": np.zeros((3, 3), np.float32)})
        == []
    )


def test_a_memory_limit_makes_more_parts():
    model, limit = plain(), 24_000
    x = {"x": RNG.standard_normal((4, 64), dtype=np.float32)}
    whole, cut = built(model), built(model, npu_mem_limit=str(limit))
    assert len(whole.manifest.parts) == 1
    assert whole.manifest.parts[0].memory > limit
    assert len(cut.manifest.parts) == 3
    assert all(_total(p) <= limit for p in cut.manifest.parts)
    np.testing.assert_array_equal(simulated(cut, x)[0], simulated(whole, x)[0])


def _total(part: DevicePart) -> int:
    return part.memory + sum(4 * int(np.prod(t.shape)) for t in (*part.inputs, *part.outputs))


def test_an_op_beyond_the_limit_goes_to_the_cpu():
    made = built(plain(), npu_mem_limit="10000")
    assert made.manifest.summary["cpu_operators"] == ["MatMul"]
    x = {"x": RNG.standard_normal((4, 64), dtype=np.float32)}
    assert simulated(made, x)[0].shape == (4, 64)


def test_op_by_op_makes_a_part_of_every_node():
    made = built(plain(), enable_cann_graph="false")
    assert len(made.manifest.parts) == 6
    assert "device/part0.singleop.json" in made.files


def test_side_branches_make_no_cycle():
    """An op that occ leaves to the CPU, parallel to a device branch: the parts stay two device parts and one CPU subgraph."""
    text = """g (float[2, 8] x) => (float[2, 8] y, float[2, 8] z) {
        a = Relu(x)
        u = Reshape(a, square)
        f = GridSample <mode = "cubic"> (u, grid)
        p = Reshape(f, flat)
        q = Sigmoid(a)
        r = Tanh(q)
        y = Add(p, r)
        z = Mul(r, q)
    }"""
    model = model_of(text, {**SIZES, "grid": GRID})
    made = built(model)
    assert made.manifest.summary["device_parts"] == 2
    assert made.manifest.summary["cpu_parts"] == 1
    x = {"x": RNG.standard_normal((2, 8), dtype=np.float32)}
    assert worst(simulated(made, x), reference(model, x)) < 1e-6


def test_an_artifact_survives_the_disk(tmp_path: Path, occ_cli: Occ):
    model = sandwich()
    x = RNG.standard_normal((2, 8), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    path = tmp_path / "m.occ"
    built(model).save(path)
    assert sorted(airs(path)) == ["device/part0.air", "device/part1.air"]
    done = occ_cli("run", path, "--simulate", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "out")
    assert done.code == 0
    assert worst([np.load(tmp_path / "out" / "y.npy")], reference(model, {"x": x})) < 1e-5


def test_a_sequence_between_cpu_parts_survives_the_disk(tmp_path: Path):
    text = """g (float[2, 3] x) => (float[3, 3] y) {
        all = SplitToSequence <axis = 0> (x)
        first = SequenceAt (all, zero)
        new = MatMul (first, w)
        more = SequenceInsert (all, new)
        y = ConcatFromSequence <axis = 0> (more)
    }"""
    model = model_of(text, {"w": np.eye(3, dtype=np.float32) * 2, "zero": np.array(0)}, opset=18)
    made = built(model)
    assert made.manifest.cpu_subgraphs == ["cpu0", "cpu1"]
    made.save(tmp_path / "m.occ")
    x = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    (got,) = simulated(Artifact.load(tmp_path / "m.occ"), x)
    np.testing.assert_array_equal(got, np.concatenate([x["x"], x["x"][:1] * 2]))


def test_a_constant_among_the_outputs_is_the_one_of_the_model():
    text = "g (float[1, 3] x) => (float[1, 3] y, float[2] c) { h = MatMul (x, w) y = Add (h, b) c = Identity (k) }"
    weights = {"w": np.eye(3, dtype=np.float32), "b": np.ones(3, np.float32), "k": np.array([7, 8], np.float32)}
    model, x = model_of(text, weights), {"x": np.arange(3, dtype=np.float32).reshape(1, 3)}
    for got, want in zip(simulated(built(model), x), reference(model, x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_equal_builds_give_equal_bytes(tmp_path: Path):
    model = sandwich()
    a, b = (built(model).save(tmp_path / n).read_bytes() for n in ("a.occ", "b.occ"))
    assert a == b


@pytest.mark.parametrize(
    ("key", "value", "listed"),
    [
        ("soc_version", "Ascend910B1", "Ascend310P3"),
        ("precision_mode", "fast", "force_fp16"),
        ("precision_mode_v2", "fp64", "cube_fp16in_fp32out"),
        ("arena_extend_strategy", "big", "kSameAsRequested"),
        ("npu_mem_limit", "much", "number"),
        ("max_opqueue_num", "1", "npu_mem_limit"),
    ],
)
def test_bad_options_are_refused_with_the_right_ones(key: str, value: str, listed: str):
    with pytest.raises(CompileError) as e:
        built(plain(), "ascend310p", **{key: value})
    assert e.value.diagnostics[0].code == "OCC0603"
    assert listed in e.value.diagnostics[0].text()


def test_options_of_newer_providers_are_read_and_change_nothing():
    newer, model = {"enable_cann_subgraph": "0", "dump_om_model": "1", "input_format": "NCHW"}, plain()
    assert built(model, **newer).files == built(model).files


def test_the_command_says_what_was_asked_for(occ_cli: Occ, tmp_path: Path):
    path = saved(plain(), tmp_path)
    options = (
        "-C",
        "precision_mode=force_fp16",
        "-C",
        "op_select_impl_mode=high_precision",
        "-C",
        "soc_version=Ascend910B4",
    )
    done = occ_cli("dump", path, "-t", "ascend910b", "--stage", "atc", *options)
    line = done.out.splitlines()[-1]
    for argument in (
        "--framework=1", "--model=part0.air", "--soc_version=Ascend910B4", "--precision_mode_v2=fp16",
        "--op_select_implmode=high_precision",
    ):  # fmt: skip
        assert argument in line
    assert "half precision" in done.out


@pytest.mark.parametrize(
    ("older", "argument"),
    [
        ("force_fp16", "--precision_mode_v2=fp16"),
        ("force_fp32", "--precision_mode_v2=cube_fp16in_fp32out"),
        ("allow_fp32_to_fp16", "--precision_mode=allow_fp32_to_fp16"),
        ("must_keep_origin_dtype", "--precision_mode_v2=origin"),
        ("allow_mix_precision", "--precision_mode_v2=mixed_float16"),
    ],
)
def test_older_precision_modes_are_passed_on_by_a_name_that_means_the_same(older: str, argument: str):
    model = plain()
    made = built(model, precision_mode=older)
    assert [a for a in made.manifest.parts[0].command if a.startswith("--precision")] == [argument]
    x = {"x": RNG.standard_normal((4, 64), dtype=np.float32)}
    error = worst(simulated(made, x), reference(model, x))
    assert error < 1e-6 if "origin" in argument else error > 1e-5


def test_half_precision_is_simulated_and_told(occ_cli: Occ, tmp_path: Path):
    model = plain()
    x = {"x": RNG.standard_normal((4, 64), dtype=np.float32)}
    want = reference(model, x)
    error = worst(simulated(built(model, precision_mode_v2="fp16"), x), want)
    cube = worst(simulated(built(model, precision_mode_v2="cube_fp16in_fp32out"), x), want)
    assert 1e-5 < cube <= error * 2 < 2e-2
    assert worst(simulated(built(model), x), want) < 1e-6
    done = occ_cli(
        "build", saved(model, tmp_path), "-t", "ascend310p", "-C", "precision_mode_v2=fp16", "-o", tmp_path / "m.occ"
    )
    assert "half precision" in done.err


def test_views_are_onnx(tmp_path: Path, occ_cli: Occ):
    out = tmp_path / "view.onnx"
    done = occ_cli(
        "dump", saved(sandwich(), tmp_path), "-t", "ascend310", "--stage", "ge", "--format", "onnx", "-o", out
    )
    assert done.code == 0
    views = [onnx.load(line) for line in done.out.split()]
    assert [v.graph.name for v in views] == ["part0", "part1"]
    assert {n.op_type for n in views[0].graph.node} == {"Const", "MatMulV2", "Relu", "Reshape"}
    assert {n.domain for v in views for n in v.graph.node} == {"ge"}


def test_the_cpp_of_each_part_is_a_file_with_its_constants(tmp_path: Path, occ_cli: Occ):
    out = tmp_path / "made" / "net.cpp"
    path = saved(sandwich(), tmp_path)
    done = occ_cli("dump", path, "-t", "ascend310", "--stage", "ge", "--format", "cpp", "-o", out)
    assert done.code == 0
    names = {p.name for p in out.parent.iterdir()}
    assert names == {"net.part0.cpp", "net.part1.cpp", "part1.constant0.bin"}
    small = occ_cli("dump", saved(plain(), tmp_path), "-t", "ascend310", "--stage", "ge", "--format", "cpp", "-o", out)
    assert small.out.split() == [str(out)]
    constants = [p for p in out.parent.iterdir() if p.suffix == ".bin"]
    assert {p.stat().st_size for p in constants if p.name.startswith("part0")} == {64 * 64 * 4}
    assert all(f'"{p.name}"' in out.read_text() for p in constants if p.name.startswith("part0"))


def trees() -> onnx.ModelProto:
    """Two trees of one node each, on the device their sum."""
    columns = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2] * 2, "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0, -0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2, "target_treeids": [0, 0, 1, 1],
        "target_nodeids": [1, 2] * 2, "target_ids": [0] * 4, "target_weights": [1.0, 2.0, 4.0, 8.0], "n_targets": 1,
    }  # fmt: skip
    made = model_of("g (float[5, 3] x) => (float[5, 1] y) { t = Relu (x) y = Exp (t) }")
    made.graph.node.pop(0)
    made.graph.node.insert(
        0, onnx.helper.make_node("TreeEnsembleRegressor", ["x"], ["t"], domain="ai.onnx.ml", **columns)
    )
    made.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    return made


def test_forests_are_for_the_cpu_and_need_no_compiler_there(monkeypatch: pytest.MonkeyPatch):
    """Without one, the part is compiled from its beginning again, through LLVM, which cuts kernels in another way than Halide."""
    model, x = trees(), RNG.standard_normal((5, 3), dtype=np.float32)
    want = reference(model, {"x": x})
    with pytest.raises(
        CompileError, match=r"(?s)`ascend910b` cannot take `forest`.*TreeEnsembleRegressor.*cpu_fallback"
    ):
        built(model, "ascend910b", cpu_fallback="off")
    monkeypatch.setattr("occ.compiler.codegen_halide.toolchain.find_cxx", lambda: None)
    toolchain.cache_clear()
    made = built(model, "ascend910b", cpu_fallback="cpu")
    toolchain.cache_clear()
    assert made.manifest.summary["cpu_operators"] == ["forest"]
    assert worst(simulated(made, {"x": x}), want) < 1e-6
