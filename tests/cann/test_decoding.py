"""Decoding with a past that grows: one artifact for all its lengths, with the kernels that a chip has for language models."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of, reference
from simulating import built, worst
from test_ascend_quant import operators

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.sessions import open_session
from occ.runtime.errors import RunError

RNG = np.random.default_rng(31)
WIDTH, VOCABULARY, STEPS = 64, 97, 32
LLAMA = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
g (int64[1, 1] ids, int64[1, total] mask, float[1, 2, past, 16] pk, float[1, 2, past, 16] pv)
    => (float[1, 1, 97] logits, float[1, 2, total, 16] nk, float[1, 2, total, 16] nv) {
    x = Gather (table, ids)
    n = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (x, g1)
    qkv = com.microsoft.MatMulNBits <K = 64, N = 128, bits = 4, block_size = 32> (n, w, steps)
    count = ReduceSum <keepdims = 0> (mask, one)
    before = Sub (count, one)
    lens = Cast <to = 6> (before)
    shape = Shape <start = 1, end = 2> (mask)
    all = Squeeze (shape)
    keys = Cast <to = 6> (all)
    a, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = 1> (qkv, , , pk, pv, lens, keys, cos, sin)
    o = MatMul (a, wo)
    h = Add (x, o)
    m = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (h, g2)
    u = MatMul (m, wu)
    t = MatMul (m, wt)
    s = Sigmoid (u)
    z = Mul (u, s)
    c = Mul (z, t)
    d = MatMul (c, wd)
    y = Add (h, d)
    logits = MatMul (y, head)
}"""
GROWING = {"dynamic_ranges": "past=?,total=past+1", "cpu_fallback": "off"}
# chip, mode -> the kernels that stand for groups of operators there
KERNELS = {
    ("ascend910b", "origin"): {"AddRmsNorm", "RmsNorm", "RotaryPositionEmbedding", "SwiGlu"},
    ("ascend910b", "mixed_float16"): {
        "AddRmsNorm", "FusedInferAttentionScore", "RmsNorm", "RotaryPositionEmbedding", "SwiGlu", "WeightQuantBatchMatmulV2",
    },
    ("ascend310p", ""): {"AddRmsNorm", "RmsNorm", "SwiGlu"}, ("ascend910", ""): {"RmsNorm"},
}  # fmt: skip
ALL = set().union(*KERNELS.values())


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.fixture(scope="module")
def llama() -> onnx.ModelProto:
    angles = np.outer(np.arange(64), 1e4 ** -np.linspace(0, 1, 8, endpoint=False)).astype(np.float32)
    weights = {
        "table": f(VOCABULARY, WIDTH), "g1": 1 + f(WIDTH) / 8, "g2": 1 + f(WIDTH) / 8, "one": np.array([1]),
        "w": RNG.integers(0, 256, (128, 2, 16)).astype(np.uint8), "steps": RNG.uniform(0.02, 0.04, (128, 2)).astype(np.float32),
        "cos": np.cos(angles), "sin": np.sin(angles), "wo": f(WIDTH, WIDTH) / 8, "wu": f(WIDTH, 96) / 8, "wt": f(WIDTH, 96) / 8,
        "wd": f(96, WIDTH) / 10, "head": f(WIDTH, VOCABULARY) / 8,
    }  # fmt: skip
    return model_of(LLAMA, weights)


def tokens(run, first: int = 5) -> tuple[list[int], list[np.ndarray]]:
    """Those that are decoded greedily after one, and the scores that they were chosen by."""
    pk, pv, token = np.zeros((1, 2, 1, 16), np.float32), np.zeros((1, 2, 1, 16), np.float32), first
    found, scores = [], []
    for _ in range(STEPS):
        feed = {"ids": np.array([[token]]), "mask": np.ones((1, pk.shape[2] + 1), np.int64), "pk": pk, "pv": pv}
        logits, pk, pv = run(feed)
        scores.append(logits)
        found.append(token := int(logits[0, 0].argmax()))
    return found, scores


@pytest.mark.parametrize(("target", "mode"), KERNELS)
def test_tokens_of_a_growing_past(llama: onnx.ModelProto, target: str, mode: str):
    """The same as onnxruntime's where FLOAT is; one graph for all lengths, wholly on the device, with the kernels of the chip."""
    session = onnxruntime.InferenceSession(llama.SerializeToString())
    wanted, scores = tokens(lambda x: session.run(None, x))
    made = built(llama, target, **GROWING, **({"precision_mode_v2": mode} if mode else {}))
    assert ALL & set(operators(made)) == KERNELS[target, mode]
    device = open_session(made, 1, simulate=True)
    got, found = tokens(lambda x: list(device.run(x).values()))
    if mode == "origin":
        assert got == wanted
        assert len(set(wanted)) > 5
    same = next((k for k, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b), STEPS - 1) + 1
    assert worst(found[:same], scores[:same]) < (1e-5 if mode == "origin" else 2e-2)


def test_a_chip_whose_kernels_take_fixed_extents_alone_wants_gears(llama: onnx.ModelProto):
    with pytest.raises(
        CompileError, match=r"(?s)no kernel of GE `.*` for .* with extents that are not fixed.*-C dynamic_dims="
    ) as e:
        built(llama, "ascend310", **GROWING)
    assert e.value.diagnostics[0].code == "OCC0305"
    made = built(llama, "ascend310", dynamic_dims="past=4,total=5;past=8,total=9")
    assert made.manifest.summary["device_parts"] == 1
    kept = np.zeros((1, 2, 8, 16), np.float32)
    given = {"ids": np.array([[3]]), "mask": np.ones((1, 9), np.int64), "pk": kept, "pv": kept}
    got = list(open_session(made, 1, simulate=True).run(given).values())
    want = onnxruntime.InferenceSession(llama.SerializeToString()).run(None, given)
    assert worst(got, want) < 2e-2


def test_sizes_that_are_no_such_sum_are_refused(llama: onnx.ModelProto):
    device = open_session(built(llama, **GROWING), 1, simulate=True)
    kept = np.zeros((1, 2, 4, 16), np.float32)
    with pytest.raises(RunError, match="total=7 and past=4"):
        device.run({"ids": np.array([[1]]), "mask": np.ones((1, 7), np.int64), "pk": kept, "pv": kept})
    with pytest.raises(CompileError, match="`dynamic_ranges` has `total=other\\+1`"):
        built(llama, dynamic_ranges="past=?,total=other+1")
    with pytest.raises(CompileError, match="uses `total`, which has no range"):
        built(llama, dynamic_ranges="past=total+1,total=past+1")


CAUSAL = """g (float[1, 2, {rows}, 8] x, float[1, 2, p, 8] past) => (float[1, 2, {rows}, 8] y) {{
    k = Concat <axis = 2> (past, x)
    before = Shape <start = 2, end = 3> (past)
    after = Shape <start = 2, end = 3> (k)
    first = Squeeze (before)
    last = Squeeze (after)
    rows = Range (first, last, step)
    keys = Range (zero, last, step)
    at = Unsqueeze (rows, one)
    kept = {kept}
    mask = Where (kept, none, low)
    t = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (x, t)
    masked = Add (s, mask)
    w = Softmax (masked)
    y = MatMul (w, k)
}}"""
MASKS = {
    "causal": "LessOrEqual (keys, at)",
    "a window": "Greater (keys, left) left = Sub (at, three)",
    "later keys": "Not (early) early = LessOrEqual (keys, at)",
}


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("mask", "rows"),
    [(m, r) for m in MASKS for r in ("1", "3", "q") if (m, r) != ("later keys", "1")],  # one row has none
)
def test_masks_of_any_past_are_one_graph(mask: str, rows: str):
    """A mask that has become a constant at each of the sizes is computed from them."""
    kept, _, inner = MASKS[mask].partition(") ")
    lines = [inner] if inner else []
    text = CAUSAL.format(rows=rows, kept=kept.removesuffix(")") + ")")
    text = text.replace("    kept = ", "".join(f"    {line}\n" for line in lines) + "    kept = ")
    weights = {
        "step": np.array(1), "zero": np.array(0), "one": np.array([1]), "three": np.array(3), "none": np.float32(0), "low": np.float32(-1e9),
    }  # fmt: skip
    m = model_of(text, {k: v for k, v in weights.items() if k in text})
    session = open_session(built(m, dynamic_ranges="p=?" + (",q=1..8" if rows == "q" else "")), 1, simulate=True)
    for q, p in ((int(rows), 5), (int(rows), 40)) if rows != "q" else ((3, 5), (7, 2), (5, 40)):
        x = {"x": f(1, 2, q, 8), "past": f(1, 2, p, 8)}
        assert worst(list(session.run(x).values()), reference(m, x)) < 2e-6
