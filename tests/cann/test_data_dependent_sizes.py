"""Operators whose number of results the data decide, within a part: NonZero, NonMaxSuppression, Unique, Compress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from building import model_of
from simulating import TARGET, built, worst

from occ.compiler.codegen_cann.parts.data_sizes import most
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.sessions import open_session
from occ.compiler.ge_simulator.reader import read
from occ.compiler.ge_simulator.schema import model_class
from occ.compiler.ir.dim import minimum, symbol
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest

RNG = np.random.default_rng(21)
CHOSEN = """g (float[4, 6] x) => (float[n] y, int64[n, 2] places, int64[m] rows) {
    big = Greater (x, half)
    where = NonZero (big)
    places = Transpose <perm = [1, 0]> (where)
    found = GatherND (x, places)
    y = Mul (found, two)
    line = Reshape (where, flat)
    rows = Slice (line, zero, five)
}"""
CONSTANTS = {
    "half": np.float32(0.5), "two": np.float32(2), "zero": np.array([0]), "flat": np.array([-1]),
    "five": np.array([5]),
}  # fmt: skip
# A detector as YOLO is exported: a head, boxes and scores of 3 classes for 64 places, NonMaxSuppression, what it selects.
DETECTOR = """g (float[2, 3, 16, 16] x) => (float[n, 6] found, int64[n, 3] selected) {
    c0 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w0)
    r0 = Relu (c0)
    c1 = Conv (r0, w1)
    flat = Reshape (c1, places)
    raw, logits = Split <axis = 1> (flat, parts)
    scores = Sigmoid (logits)
    squashed = Sigmoid (raw)
    turned = Transpose <perm = [0, 2, 1]> (squashed)
    scaled = Mul (turned, scale)
    boxes = Add (scaled, grid)
    selected = NonMaxSuppression <center_point_box = 1> (boxes, scores, limit, iou, least)
    batch = Slice (selected, zero, one, one)
    class = Slice (selected, one, two, one)
    box = Slice (selected, two, three, one)
    at = Concat <axis = 1> (batch, box)
    chosen = GatherND (boxes, at)
    score = GatherND (scores, selected)
    column = Unsqueeze (score, one)
    number = Cast <to = 1> (class)
    found = Concat <axis = 1> (chosen, column, number)
}"""
REPEATS = "g (float[3, 8] x) => (float[n] y, int64[n] first, int64[24] which, int64[n] often) { y, first, which, often = Unique <sorted = %d> (x) }"


def detector(least: float = 0.75, limit: int = 20):
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:8, 0:8] * 2
    grid = np.stack([columns.ravel(), rows.ravel(), np.full(64, 2), np.full(64, 2)], -1)[None].astype(np.float32)
    weights = {
        "w0": rng.standard_normal((8, 3, 3, 3), np.float32) * np.float32(0.3), "w1": rng.standard_normal((7, 8, 1, 1), np.float32) * np.float32(0.3),
        "places": np.array([2, 7, 64]), "parts": np.array([4, 3]), "scale": np.float32(4), "grid": grid, "limit": np.array([limit]),
        "iou": np.array([0.5], np.float32), "least": np.array([least], np.float32),
        **{name: np.array([k]) for k, name in enumerate(("zero", "one", "two", "three"))},
    }  # fmt: skip
    return model_of(DETECTOR, weights)


def by_onnxruntime(model, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))


def check(model, samples: list[np.ndarray], target: str = TARGET) -> list[tuple[int, ...]]:
    """That a model is one part, and right at each of its inputs; returns the shapes of the first result."""
    made = built(model, target, cpu_fallback="off")
    assert made.manifest.summary["device_parts"] == 1
    session, shapes = open_session(made, 1, simulate=True), []
    for x in samples:
        got, want = list(session.run({"x": x}).values()), by_onnxruntime(model, {"x": x})
        assert worst(got, want) < 1e-5
        shapes.append(got[0].shape)
    return shapes


def some(count: int) -> np.ndarray:
    """So many of 24 elements are beyond a half."""
    x = np.zeros(24, np.float32)
    x[RNG.permutation(24)[:count]] = 1 + RNG.random(count, np.float32)
    return x.reshape(4, 6)


@pytest.mark.parametrize("target", ["ascend310p", "ascend910", "ascend910b"])
def test_places_that_are_not_zero(target: str):
    assert check(model_of(CHOSEN, CONSTANTS), [some(n) for n in (0, 1, 2, 7, 24)], target) == [
        (0,),
        (1,),
        (2,),
        (7,),
        (24,),
    ]


def test_sizes_that_data_decide_are_for_the_cpu_on_a_chip_of_fixed_extents():
    made = built(model := model_of(CHOSEN, CONSTANTS), "ascend310")
    assert made.manifest.summary["cpu_ops"]
    x = {"x": some(7)}
    got, want = open_session(made, 1, simulate=True).run(x), by_onnxruntime(model, x)
    for g, w in zip(got.values(), want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3)


def test_a_detector_with_its_boxes_chosen_on_the_device():
    shown = [RNG.standard_normal((2, 3, 16, 16), np.float32) * k for k in (np.float32(0), np.float32(1), np.float32(3))]
    counts = [n for n, _ in check(detector(), shown)]
    assert counts[0] == 0
    assert 1 < counts[1] < counts[2]


@pytest.mark.parametrize("target", ["ascend310p", "ascend910"])
def test_a_detector_on_a_chip_of_half_precision_selects_the_same_boxes(target: str):
    made = built(model := detector(0.8), target, cpu_fallback="off")
    x = RNG.standard_normal((2, 3, 16, 16), np.float32)
    got, want = open_session(made, 1, simulate=True).run({"x": x}), by_onnxruntime(model, {"x": x})
    assert made.manifest.summary["device_parts"] == 1
    assert got["found"].shape == want[0].shape
    if target == "ascend910":  # scores are in half precision there: two that are nearly the same change places
        assert sorted(map(tuple, got["selected"])) == sorted(map(tuple, want[1]))
        return
    np.testing.assert_array_equal(got["selected"], want[1])
    assert np.abs(got["found"] - want[0]).max() < 0.02


@pytest.mark.parametrize("is_sorted", [0, 1])
def test_distinct_elements(is_sorted: int):
    samples = [np.zeros((3, 8), np.float32), *(RNG.integers(0, k, (3, 8)).astype(np.float32) for k in (3, 9))]
    shapes = check(model_of(REPEATS % is_sorted), samples)
    assert shapes[0] == (1,)
    assert shapes[1] == (3,)
    assert shapes[2][0] > 3


@pytest.mark.parametrize(
    ("axis", "n"), [("", 24), ("<axis = 0>", 4), ("<axis = 1>", 6), ("<axis = 0>", 3), ("<axis = 1>", 9)]
)
def test_what_a_computed_condition_keeps(axis: str, n: int):
    shape = {"": "m", "<axis = 0>": "m, 6", "<axis = 1>": "4, m"}[axis]
    model = model_of(
        f"g (float[4, 6] x) => (float[{shape}] y) {{ line = Reshape (x, flat) part = Slice (line, zero, end) c = Greater (part, half) y = Compress {axis} (x, c) }}",
        {**CONSTANTS, "end": np.array([n])},
    )
    check(model, [some(k) for k in (0, 5, 24)])


def test_sizes_in_ranges_too():
    text = "g (float[b, 6] x) => (float[n] y, int64[n] twice) { w = NonZero (x) t = Transpose <perm = [1, 0]> (w) y = GatherND (x, t) s = Shape (y) o = Expand (one, s) e = Expand (b1, s) twice = Add (o, e) }"
    model = model_of(text, {"one": np.array(1), "b1": np.array(1)})
    made = built(model, cpu_fallback="off", dynamic_ranges="b=1..64")
    session = open_session(made, 1, simulate=True)
    for rows, share in ((1, 0.0), (3, 0.5), (64, 0.9)):
        x = np.where(RNG.random((rows, 6)) < share, 1, 0).astype(np.float32)
        assert worst(list(session.run({"x": x}).values()), by_onnxruntime(model, {"x": x})) == 0


def test_what_the_cpu_cuts_off_stays_there():
    """A string between: what has the size of the first part's result runs on the CPU, and is told why."""
    text = """g (float[4, 6] x) => (float[n] y) {
        where = NonZero (x)
        places = Transpose <perm = [1, 0]> (where)
        found = GatherND (x, places)
        text = Cast <to = 8> (found)
        number = Cast <to = 1> (text)
        y = Relu (number)
    }"""
    made = built(model := model_of(text))
    assert made.manifest.summary["cpu_operators"] == ["Cast", "Relu"]
    session = open_session(made, 1, simulate=True)
    for count in (0, 3, 24):
        x = some(count)
        assert worst(list(session.run({"x": x}).values()), by_onnxruntime(model, {"x": x})) < 1e-6


@pytest.mark.parametrize(
    ("target", "limit", "reason"),
    [
        ("ascend310", 0, "it selects no box"),
        ("ascend910b", 0, "it selects no box"),
    ],
)
def test_boxes_that_no_kernel_selects_are_for_the_cpu(target: str, limit: int, reason: str):
    with pytest.raises(CompileError, match=reason):
        built(detector(limit=limit), target, cpu_fallback="off")
    assert "NonMaxSuppression" in built(detector(limit=limit), target).manifest.summary["cpu_operators"]


def test_more_boxes_of_a_class_than_the_kernel_selects():
    text = "g (float[1, 800, 4] b, float[1, 1, 800] s) => (int64[n, 3] y) { y = NonMaxSuppression (b, s, limit) }"
    model = model_of(text, {"limit": np.array([2**40])})
    with pytest.raises(CompileError, match="it may select 800 boxes of a class, the kernel of the chip 700"):
        built(model, "ascend310p", cpu_fallback="off")
    built(model, cpu_fallback="off")


def test_gears_and_sizes_that_the_data_decide_do_not_go_together():
    model = model_of("g (float[b, 6] x) => (int64[2, n] y) { y = NonZero (x) }")
    with pytest.raises(CompileError, match="are not fixed"):
        built(model, dynamic_batch_size="1,2")


def test_extents_that_fall_have_no_bound():
    n = symbol("_u0")
    assert most(2 * n + 1, {"_u0": 8}) == 17
    assert most(8 - n, {"_u0": 8}) is None
    assert most(n // 2 + n - 3, {"_u0": 8}) == 9
    assert most(minimum(3 * n, 5), {"_u0": 8}) == 5
    assert most(minimum(8 - n, 5), {"_u0": 8}) is None


def node(ops, kind: str):
    return next(n for n in ops if n.type == kind)


def fewer_rows(ops) -> None:
    node(ops, "NonZero").output_desc[0].shape.dim[0] = 3


def other_numbers(ops) -> None:
    numbers = next(n for n in ops if n.type == "Const" and n.output_desc[0].shape.dim[:] == [2, 3, 64, 4])
    numbers.attr["value"].t.data = bytes(len(numbers.attr["value"].t.data))


def too_many(ops) -> None:
    nms = node(ops, "NonMaxSuppressionV7")
    nms.attr["max_boxes_size"].i = 2 * 3 * 64
    nms.output_desc[0].shape.dim[0] = 2 * 3 * 64


def changed(made: Artifact, change) -> Artifact:
    (part,) = made.manifest.parts
    message = model_class()()
    message.ParseFromString(made.files[part.air])
    change(message.graph[0].op)
    return replace(made, files={**made.files, part.air: message.SerializeToString()})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (fewer_rows, r"NonZero returned int64\[\d+, 1\], described as int64\[3, 1\]"),
        (other_numbers, r"`index_id` of NonMaxSuppressionV7 does not number the boxes \[2, 3, 64\]"),
        (too_many, r"described as int32\[120\]|is int32\[384, 3\]"),
    ],
)
def test_a_fault_in_the_graph_is_named(change, said: str):
    made = built(detector())
    x = RNG.standard_normal((2, 3, 16, 16), np.float32) * np.float32(3)
    with pytest.raises(RunError, match=said):
        open_session(changed(made, change), 1, simulate=True).run({"x": x})


def test_a_plan_with_too_little_room_is_named():
    made = built(detector())
    steps = [
        replace(s, attrs={**s.attrs, "max_shapes": [[2, 3], [2, 6]]}) if s.kind == "device" else s
        for s in made.manifest.plan.steps
    ]
    less = replace(made, manifest=replace(made.manifest, plan=replace(made.manifest.plan, steps=steps)))
    x = RNG.standard_normal((2, 3, 16, 16), np.float32) * np.float32(3)
    with pytest.raises(RunError, match=r"the plan has room for int64\[2, 3\]"):
        open_session(less, 1, simulate=True).run({"x": x})


@pytest.mark.parametrize("room", [5, [], [[24], 3], [[["/", 1, 2]], []], [[1.5], [24, 2]]])
def test_damaged_room_is_refused_when_the_manifest_is_read(room):
    record = json.loads(
        built(
            model_of("g (float[4, 6] x) => (int64[2, n] y, float[4, 6] z) { y = NonZero (x) z = Neg (x) }")
        ).manifest.to_json()
    )
    (step,) = [s for s in record["plan"]["steps"] if s["kind"] == "device"]
    Manifest.from_json(json.dumps(record))
    step["attrs"]["max_shapes"] = room
    with pytest.raises(RunError, match="is not a size"):
        Manifest.from_json(json.dumps(record))


def test_the_simulator_refuses_what_a_chip_lacks():
    made = built(detector())
    (part,) = made.manifest.parts
    for soc, said in (("Ascend910A", "no kernel of NonMaxSuppressionV7"), ("Ascend310P3", "no kernel of Conv2D")):
        other = replace(made, manifest=replace(made.manifest, parts=[replace(part, soc=soc)]))
        with pytest.raises(RunError, match=said):
            open_session(other, 1, simulate=True)


def test_the_graph_has_open_extents_after_what_decides_them():
    made = built(model_of(CHOSEN, CONSTANTS))
    graph = next(iter(read(made.files[made.manifest.parts[0].air]).values()))
    shapes = {n.type: n.output_descs[0].shape for n in graph.nodes if n.output_descs}
    assert shapes["NonZero"] == (2, -1)
    assert shapes["GatherNd"] == (-1,)
    (step,) = [s for s in made.manifest.plan.steps if s.kind == "device"]
    assert sorted(step.attrs["max_shapes"]) == [[5], [24], [24, 2]]
