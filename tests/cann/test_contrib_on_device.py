"""Operators of com.microsoft on the device: grouped attention with its caches, mixtures of experts, and all others that are mapped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "numeric"))
import test_contrib as contrib
import test_contrib_exported as exported
import test_experimental_operators as experimental
import test_experts as experts
import test_group_query as group_query
from simulating import built, simulated
from test_ascend_quant import operators

from occ.compiler.diagnostics import CompileError
from occ.compiler.ir.dtype import F32

CHIPS = ("ascend310p", "ascend910b")


def compared(
    model: onnx.ModelProto, feed: Mapping[str, np.ndarray], target: str, most: float = 0.0
) -> list[np.ndarray]:
    """The device's outputs, after comparison with onnxruntime; `most` is a share of the largest value."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feed))
    got = simulated(built(model, target, cpu_fallback="off"), feed)
    most = max(most, 2e-6 if target == "ascend910b" else 3e-3)
    for x, y in zip(got, wanted, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype == np.float32:
            assert np.abs(x - y).max() <= most * np.abs(y).max()
        else:
            np.testing.assert_array_equal(x, y)
    return got


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize("case", group_query.CACHES)
def test_cache_of_codes(case: str, target: str):
    bits, kind, n, length, past, lens = group_query.CACHES[case]
    size, groups = group_query.SIZE, group_query.GROUPS
    scales = (1,) if kind == "PER_TENSOR" else (1, groups, 1, size)
    held = {
        k: group_query.RNG.integers(0, 256, (n, groups, past, size * bits // 8)).astype(np.uint8) for k in ("pk", "pv")
    }
    if bits == 8:
        held = {k: v.view(np.int8) for k, v in held.items()}
    steps = {k: (group_query.RNG.uniform(0.5, 1, scales) * (0.02 if bits == 8 else 0.3)).astype(np.float32) for k in ("ks", "vs")}  # fmt: skip
    feed = group_query.projected(n, length, past, lens) | held | steps
    kind = kind.removesuffix(", flat")
    node = group_query.attention(feed, ["y", "nk", "nv"], k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits)
    code = onnx.helper.np_dtype_to_tensor_dtype(held["pk"].dtype)
    model = group_query.model_of([node], feed, {"y": F32.onnx, "nk": code, "nv": code})
    compared(model, {k: v for k, v in feed.items() if k != "total"}, target)


# rows, new keys, keys that the cache has room for, ends of the rows
ROOMS = {
    "the first keys": (2, 3, 0, [2, 2]),
    "rows of their own length": (2, 1, 7, [6, 3]),
    "a step into a cache with room": (1, 1, 8, [5]),
    "several into a cache with room": (1, 2, 8, [5]),
}


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize("case", ROOMS)
def test_cache_is_written_where_each_row_ends(case: str, target: str):
    n, length, past, ends = ROOMS[case]
    feed = group_query.projected(n, length, past, ends)
    feed["total"] = np.array(max(ends) + 1, np.int32)
    kept = {k: group_query.normal(n, group_query.GROUPS, past, group_query.SIZE) for k in ("pk", "pv")}
    feed |= kept if past else {}
    feed |= {k: group_query.normal(32, group_query.SIZE // 2) for k in ("cos", "sin")}
    node = group_query.attention(feed, ["y", "nk", "nv"], do_rotary=1)
    model = group_query.model_of([node], feed, dict.fromkeys(("y", "nk", "nv"), F32.onnx))
    compared(model, {k: v for k, v in feed.items() if k != "total"}, target)


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize("case", experts.MIXTURES)
def test_mixture(case: str, target: str):
    shape, fused, bias, attrs = experts.MIXTURES[case]
    model = experts.expert_model("MoE", shape, experts.floats(fused, bias), **attrs)
    rows = int(np.prod(shape[:-1]))
    compared(model, {"x": experts.normal(*shape), "router": experts.normal(rows, experts.EXPERTS)}, target)
    gathers = rows * attrs["k"] <= experts.EXPERTS
    assert operators(built(model, target))["GatherV2"] >= (2 if gathers or bias else 1)


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize("case", experts.QUANTISED)
def test_quantised_mixture(case: str, target: str):
    bits, block, zeros, shape, fused, attrs = experts.QUANTISED[case]
    size = {"block_size": block} if block else {}
    held = experts.quantised(bits, block, zeros, fused)
    model = experts.expert_model("QMoE", shape, held, expert_weight_bits=bits, **size, **attrs)
    feed = {"x": experts.normal(*shape), "router": experts.normal(int(np.prod(shape[:-1])), experts.EXPERTS)}
    # onnxruntime rounds activations to 8 bits where codes of blocks have 8
    compared(model, feed, target, 2e-2 if bits == 8 and block else 0)
    codes = sum(v.size * 8 // bits for k, v in held.items() if v is not None and k in ("w1", "w2"))
    assert built(model, target).manifest.parts[0].weights < codes * (2 if bits == 8 else 1) * 1.6


@pytest.mark.parametrize("case", contrib.CASES)
def test_contrib_operator(case: str):
    name, operands, attrs, n, most = contrib.CASES[case]
    given = {k: v for k, v in operands.items() if not k.startswith("_")}
    weights = contrib.QUANT_WEIGHTS.get(
        name, [k for k in given if k not in ("x", "a")] if name in contrib.WEIGHTS else ()
    )
    constant = tuple(k for k in given if k in weights or k in contrib.CONSTANT)
    model = contrib.model(name, operands, attrs, n, constant)
    feed = {k: v for k, v in given.items() if k not in constant}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feed)
    got = simulated(built(model, cpu_fallback="off", qdq="float"), feed)
    for x, y in zip(got, wanted, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=0, atol=most)


# What ONNX's operators are on the device; of the others GE has none.
TAKEN = {
    "grid-sample", "grid-sample-nearest", "trilu", "gather-nd", "gather-nd-i32", "range", "range-by-two", "pad", "pad-by-a-row", "sample", "unique",
    "transposed-conv", "transposed-conv-bias",
}  # fmt: skip


@pytest.mark.parametrize("case", exported.CASES)
def test_operator_of_exporters_is_right_on_the_device_or_refused_by_name(case: str):
    name, operands, attrs, n, most, constant = exported.CASES[case]
    model = contrib.model(name, operands, attrs, n, constant)
    feed = {k: v for k, v in operands.items() if k not in constant and not k.startswith("_")}
    if case not in TAKEN:
        with pytest.raises(CompileError, match=r"OCC0301.*cannot take `"):
            built(model, cpu_fallback="off")
        return
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for x, y in zip(simulated(built(model, cpu_fallback="off"), feed), wanted, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=0, atol=most)


@pytest.mark.parametrize("case", experimental.CASES)
def test_experimental_operator(case: str):
    compared(experimental.model(case), {"x": experimental.IMAGE}, "ascend910b")
