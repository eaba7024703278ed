"""Batches in slices: the same results as on the whole batch and as onnxruntime's; those of convolutions to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of, on_threads

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.native_entry.read_routines import host_steps
from occ.compiler.passes.algorithms import slice_batch
from occ.runtime.profile import profile

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.standard_normal((8, 3, 3, 3)).astype(np.float32) / 5,
    "v": RNG.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8,
    "m": RNG.standard_normal((8, 10)).astype(np.float32),
}
# A net for pictures, of any batch.
NET = """g (float[{n}, 3, 24, 24] x) => (float[{n}, 10] y, float[{n}, 8, 24, 24] early) {{
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    early = Relu(a)
    b = Conv <pads = [1, 1, 1, 1]> (early, v)
    c = Add(b, early)
    d = GlobalAveragePool(c)
    e = Reshape(d, shape)
    f = MatMul(e, m)
    y = Softmax <axis = 1> (f)
}}"""
# What `y` computes of `x`, f32[6, 4, 5], where an item needs others, or its number.
MIXED = {
    "sum": "y = ReduceSum <keepdims = 1> (x, zero)",
    "softmax": "y = Softmax <axis = 0> (x)",
    "transposed": "y = Transpose <perm = [1, 0, 2]> (x)",
    "shifted": "y = Slice(x, one, six, zero)",
    "first": "y = Gather <axis = 0> (x, zero)",
    "joined": "y = Concat <axis = 0> (x, x)",
    "running sum": "y = CumSum(x, zero)",
    "numbered": "r = Range(start, end, step)  f = Cast <to = 1> (r)  g = Reshape(f, column)  y = Mul(x, g)",
    "a constant for each": "y = Mul(x, items)",
    "counted": "s = Shape(x)  f = Cast <to = 1> (s)  n = Gather(f, zero)  y = Div(x, n)",
    "reshaped": "y = Reshape(x, across)",
    "sorted": "y, i = TopK <axis = 0> (x, one)",
    "of another item": "z = Gather <axis = 0> (x, backwards)  y = Add(x, z)",
}
CONSTANTS = {
    "zero": np.array([0]), "one": np.array([1]), "six": np.array([6]), "column": np.array([6, 1, 1]), "start": np.array(0),
    "step": np.array(1), "end": np.array(6), "across": np.array([4, 6, 5]), "backwards": np.arange(6)[::-1].copy(),
    "items": RNG.standard_normal((6, 1, 1)).astype(np.float32),
}  # fmt: skip


def net(n: int | str) -> onnx.ModelProto:
    """The net for a batch; a fixed one has it in the shape of its Reshape."""
    shape = np.array([n if isinstance(n, int) else -1, 8])
    return model_of(NET.format(n=n), {**WEIGHTS, "shape": shape}, opset=17)


def scans(model: onnx.ModelProto, target: str = "cpu-jit", **options: str) -> list[list[int]]:
    """The shape of the first operand of each Scan."""
    c = Compilation(model, Settings(target, options={k.replace("_", "-"): v for k, v in options.items()}))
    c.advance("fused")
    return [op.operands[0].tensor.dims for op in c.module.main.body if op.name == "Scan"]


@pytest.mark.parametrize("n", [6, "n"])
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_results(target: str, n: int | str) -> None:
    model, x = net(n), RNG.standard_normal((6, 3, 24, 24)).astype(np.float32)
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    whole = occ.compile(model, target, options={"batch-slices": "off"}, threads=1)
    for size in ("1", "2") if n == 6 else ("1",):
        artifact = occ.build(model, target, options={"batch-slices": size})
        assert not host_steps(artifact.manifest)  # programs on libocc run it
        for session in on_threads(artifact):
            for items in (6,) if n == 6 else (6, 5, 1):
                found = session.run({"x": x[:items]})
                np.testing.assert_array_equal(found["early"], whole.run({"x": x[:items]})["early"])
                for a, b in zip(found.values(), theirs.run(None, {"x": x[:items]}), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_no_items() -> None:
    y, early = occ.compile(net("n"), "cpu-jit", options={"batch-slices": "1"}).run(
        {"x": np.zeros((0, 3, 24, 24), np.float32)}
    ).values()  # fmt: skip
    assert y.shape == (0, 10)
    assert early.shape == (0, 8, 24, 24)


@pytest.mark.parametrize("body", MIXED.values(), ids=MIXED)
def test_items_that_depend_on_each_other_stay_together(body: str) -> None:
    """The ops before run in slices; what mixes items sees all of them."""
    used = {name: value for name, value in CONSTANTS.items() if name in body}
    model = model_of(
        f"g (float[6, 4, 5] a) => (float[p, q, r] o) {{ e = Exp(a)  x = Tanh(e)  {body}  o = Neg(y) }}", used, opset=17
    )
    given = {"a": RNG.standard_normal((6, 4, 5)).astype(np.float32)}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    assert scans(model, batch_slices="2") == [(3, 2, 4, 5)]
    (found,) = occ.compile(model, "cpu-jit", options={"batch-slices": "2"}).run(given).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "y = Clip(a, low, high)",
        "y = Pow(a, two)",
        "y = Mul(a, learned)",
        "y = PRelu(a, low)",
        "y = ReduceMean <keepdims = 1> (a, last)",
        "q = QuantizeLinear(a, scale, point)  y = DequantizeLinear(q, scale, point)",
        "y = Where(c, a, low)",
        "y = Pad(a, widths, low)",
    ],
)
def test_ops_that_read_constants_are_sliced(body: str) -> None:
    """Constants that become literals or shapes are no parameters of a kernel."""
    constants = {
        "low": np.float32(0.25), "high": np.float32(0.5), "two": np.float32(2), "learned": np.float32(0.63296586),
        "last": np.array([2]), "scale": np.float32(0.0125), "point": np.uint8(7), "widths": np.array([0, 1, 0, 0, 0, 2]),
        "c": np.array([True, False, False, True, True]),
    }  # fmt: skip
    used = {k: np.asarray(v) for k, v in constants.items() if f"({k}," in body or f", {k}" in body}
    text = f"g (float[6, 4, 5] x) => (float[p, q, r] o) {{ a = Exp(x)  {body}  o = Neg(y) }}"
    model, given = model_of(text, used, opset=18), {"x": RNG.standard_normal((6, 4, 5)).astype(np.float32)}
    c = Compilation(model, Settings("cpu-jit", options={"batch-slices": "2"}))
    c.advance("fused")
    assert [op.name for op in c.module.main.body if not op.is_terminator] == ["Reshape", "Scan", "Reshape"]
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    (found,) = occ.compile(model, "cpu-jit", options={"batch-slices": "2"}).run(given).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("n", "size", "wanted"),
    [(6, "off", None), (6, "auto", None), (6, "4", 2), (6, "6", None), (7, "2", 1), (1, "1", None), ("n", "4", 1)],
)
def test_sizes_of_slices(n: int | str, size: str, wanted: int | None) -> None:
    assert [s[1] for s in scans(net(n), batch_slices=size)] == ([] if wanted is None else [wanted])


def test_batches_of_known_multiples() -> None:
    session = occ.compile(net("n"), "cpu-jit", options={"batch-slices": "4"}, dims={"n": "4..64:4"})
    x = RNG.standard_normal((8, 3, 24, 24)).astype(np.float32)
    wanted = occ.compile(net("n"), "interp").run({"x": x})
    np.testing.assert_allclose(session.run({"x": x})["y"], wanted["y"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", ["0", "-1", "some", "1.5", "²", "٣", "010", "9" * 5000])
def test_no_size(size: str) -> None:
    with pytest.raises(occ.CompileError, match=r"OCC0603.*`batch-slices` cannot be"):
        occ.build(net(6), "cpu-jit", options={"batch-slices": size})


def test_a_profile_has_one_line_for_a_kernel_of_all_slices() -> None:
    session = occ.compile(net(6), "cpu-jit", options={"batch-slices": "2"}, threads=1)
    made = profile(session, {"x": np.zeros((6, 3, 24, 24), np.float32)}, runs=1)
    assert made is not None
    lines = [line for line in made.table().splitlines() if "x3: " in line]
    assert len(lines) == len({(e.kernel, e.nodes) for e in made.events})
    assert all(len([e for e in made.events if e.kernel == one.kernel]) == 3 for one in made.events)


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(a, s)",
        "y = Mod(a, s)",
        "f = Cast <to = 1> (a)  n = Cast <to = 1> (s)  q = Div(f, n)  y = Cast <to = 7> (q)",
        "k = Squeeze(s)  y = Trilu(a, k)",
    ],
)
def test_numbers_computed_from_the_batch(body: str) -> None:
    """A value that names the size of a symbolic batch is that of the whole batch, not of a slice."""
    model = model_of(
        f"g (int64[n, 5, 7] x) => (int64[n, 5, 7] y) {{ a = Abs(x)  s = Shape <start = 0, end = 1> (a)  {body} }}"
    )
    x = np.arange(3 * 5 * 7).reshape(3, 5, 7) + 1
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = occ.compile(model, "cpu-jit", options={"batch-slices": "1"}).run({"x": x}).values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("n", [6, "n"])
@pytest.mark.parametrize(
    "body",
    [
        "z = NonZero(b)  s = Shape <start = 1> (z)  c = ConstantOfShape(s)  y = Cast <to = 1> (c)",
        "z = NonZero(b)  s = Shape <start = 1> (z)  c = Expand(one, s)  y = Cast <to = 1> (c)",
        "z = NonZero(b)  s = Shape <start = 1> (z)  k = Squeeze(s)  r = Range(zero, k, step)  y = Cast <to = 1> (r)",
    ],
)
def test_sizes_that_the_batch_determines(body: str, n: int | str) -> None:
    """Ops that read a size found after the slices follow them, although they read nothing of the batch."""
    constants = {"t": np.float32(0.5), "one": np.ones(1, np.int64), "zero": np.int64(0), "step": np.int64(1)}
    used = {k: np.asarray(v) for k, v in constants.items() if f"({k}," in body or f", {k})" in body or k == "t"}
    model = model_of(
        f"g (float[{n}, 4, 5] x) => (float[q] y, float[{n}, 4, 5] e) {{ e = Exp(x)  b = Greater(e, t)  {body} }}", used
    )
    x = RNG.standard_normal((6, 4, 5)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = occ.compile(model, "cpu-jit", options={"batch-slices": "1"}).run({"x": x}).values()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_sizes_found_after_the_slices_bound_other_inputs() -> None:
    """An operand that has as many elements as the batch has items is no reason to find a size after its use."""
    model = model_of(
        "g (float[2, 3] x, int32[7, 5, 8] w, int64[2] e) => (float[2, 3] y, int32[a, b, c] z)"
        " { y = Exp(x)  z = Slice(w, start, e, axes) }",
        {"start": np.zeros(2, np.int64), "axes": np.array([1, 2])},
    )
    given = {"x": RNG.standard_normal((2, 3)).astype(np.float32), "w": RNG.integers(9, size=(7, 5, 8)).astype(np.int32)}
    given["e"] = np.array([3, -2])
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    found = occ.compile(model, "cpu-jit", options={"batch-slices": "1"}).run(given).values()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_the_check_of_the_plan_knows_in_a_slice_what_the_model_assumes() -> None:
    """Two lengths that add up to a constant, as of caches: a slice reads that number of elements of their join."""
    model = model_of(
        "g (float[n, a, 4] x, float[n, b, 4] y) => (float[p, q, r] z)"
        " { c = Concat <axis = 1> (x, y)  d = Add(c, w)  z = Softmax <axis = 1> (d) }",
        {"w": RNG.standard_normal((8, 4)).astype(np.float32)},
    )
    given = {"x": np.ones((3, 6, 4), np.float32), "y": RNG.standard_normal((3, 2, 4)).astype(np.float32)}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    settings = Settings("cpu-jit", options={"batch-slices": "1"}, cache=False, verify=True)
    assert "slice" in Compilation(model, settings).advance("lowered").funcs
    session = occ.compile(model, "cpu-jit", options={"batch-slices": "1"})
    np.testing.assert_allclose(session.run(given)["z"], wanted, rtol=1e-5)
    with pytest.raises(occ.RunError, match="OCC0503"):
        session.run({**given, "y": given["y"][:, :1]})


@pytest.mark.parametrize("batch", ["N", 16])
def test_small_activations_need_no_search_for_a_part(batch, monkeypatch):
    def search(*_):
        raise AssertionError("ops were copied")

    monkeypatch.setattr(slice_batch, "PerItemPart", search)
    text = f"g (float[{batch}, 3, 8, 8] x) => (float[{batch}, 3, 8, 8] y) {{ y = Softmax(x) }}"
    Compilation(model_of(text).SerializeToString(), Settings("cpu-jit")).advance("fused")
