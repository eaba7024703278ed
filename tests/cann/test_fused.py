"""Groups of operators that chips have one kernel for, against onnx.reference, and what the simulator refuses of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of, reference
from simulating import built, simulated, worst
from test_ascend_quant import operators
from test_kernel_tables import loaded

from occ.compiler.codegen_cann.graph.graph import Desc
from occ.compiler.driver.sessions import open_session
from occ.compiler.ge_simulator.reader import BadGraph

RNG = np.random.default_rng(53)
NEW, OLD = ("ascend310p", "ascend910b"), ("ascend310", "ascend910")


def f(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


WEIGHTS = {
    "g": f(16), "two": np.float32(2), "axis": np.array([-1], np.int64), "eps": np.float32(1e-6), "a": f(16, 24), "b": f(16, 24),
    "zero": np.array([0], np.int64), "half": np.array([8], np.int64), "end": np.array([99], np.int64), "last": np.array([3], np.int64),
    "cos": f(2, 1, 5, 16), "sin": f(2, 1, 5, 16), "c": f(2, 5, 8), "s": f(2, 5, 8), "gh": f(16, dtype=np.float16),
    "scale": np.float32(0.25), "none": np.float32(0), "low": np.float32(-np.inf), "no": np.array(0, np.float32),
    "kept": np.tril(np.ones((5, 7), bool), 2), "heads": np.array([2], np.int64), "wide": np.array([2, 2, 3, 7, 16], np.int64),
    "flat": np.array([2, 6, 7, 16], np.int64),
}  # fmt: skip
X = "(float[2, 5, 16] x)"
QKV = "(float[2, 6, 5, 16] q, float[2, 2, 7, 16] k, float[2, 2, 7, 16] v) => (float[2, 6, 5, 16] y)"
ROTARY = "(float[2, 6, 5, 16] x) => (float[2, 6, 5, 16] y)"
# name -> text, the operator that stands for it, the targets that have it
MODELS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "normalised rows": (f"{X} => (float[2, 5, 16] y) {{ y = RMSNormalization <epsilon = 0.0001> (x, g) }}", "RmsNorm", NEW),
    "half rows": (
        "(float16[2, 5, 16] x) => (float16[2, 5, 16] y) { y = RMSNormalization (x, gh) }", "RmsNorm", NEW,
    ),
    "rows normalised by hand": (
        f"{X} => (float[2, 5, 16] y) {{ p = Pow (x, two) m = ReduceMean (p, axis) e = Add (m, eps) r = Sqrt (e) i = Reciprocal (r) n = Mul (x, i) y = Mul (g, n) }}",
        "RmsNorm", NEW,
    ),
    "a sum, normalised and read besides": (
        """(float[2, 5, 16] x, float[2, 5, 16] r) => (float[2, 5, 16] y, float[2, 5, 16] z) { h = Add (x, r) e = Exp (h)
            n = RMSNormalization (h, g) y = Mul (n, e) z = Add (y, h) }""", "AddRmsNorm", NEW,
    ),
    "a sum that is an output": (
        "(float[2, 5, 16] x, float[2, 5, 16] r) => (float[2, 5, 16] y, float[2, 5, 16] h) { h = Add (x, r) y = RMSNormalization (h, g) }",
        "AddRmsNorm", NEW,
    ),
    "sums with one weight": (
        """(float[2, 5, 16] x, float[2, 5, 16] r) => (float[2, 5, 16] y) { h = Add (x, r) n = RMSNormalization (h, g) e = Exp (n)
            t = Add (h, e) y = RMSNormalization (t, g) }""", "AddRmsNorm", NEW,
    ),
    "a sum of other shapes": (f"{X} => (float[2, 5, 16] y) {{ h = Add (x, g) y = RMSNormalization (h, g) }}", "RmsNorm", NEW),
    "rows without weights": (
        f"{X} => (float[2, 5, 16] y) {{ p = Mul (x, x) m = ReduceMean (p, axis) e = Add (eps, m) r = Sqrt (e) y = Div (x, r) }}", "", (),
    ),
    "gated": (
        f"{X} => (float[2, 5, 24] y) {{ u = MatMul (x, a) t = MatMul (x, b) e = Sigmoid (u) h = Mul (u, e) y = Mul (h, t) }}", "SwiGlu", NEW,
    ),
    "gated, and read besides": (
        f"{X} => (float[2, 5, 24] y, float[2, 5, 24] u) {{ u = MatMul (x, a) t = MatMul (x, b) e = Sigmoid (u) h = Mul (u, e) y = Mul (h, t) }}", "", (),
    ),
    "turned": (f"{ROTARY} {{ y = RotaryEmbedding (x, c, s) }}", "RotaryPositionEmbedding", NEW[1:]),
    "turned, rows before heads": (
        "(float[2, 5, 96] x) => (float[2, 5, 96] y) { y = RotaryEmbedding <num_heads = 6> (x, c, s) }", "RotaryPositionEmbedding", NEW[1:],
    ),
    "turned by hand": (
        f"""{ROTARY} {{ p = Mul (x, cos) l = Slice (x, zero, half, last) h = Slice (x, half, end, last) n = Neg (h)
            t = Concat <axis = -1> (n, l) w = Mul (t, sin) y = Add (p, w) }}""", "RotaryPositionEmbedding", NEW[1:],
    ),
    "turned the other way": (
        f"""{ROTARY} {{ p = Mul (x, cos) l = Slice (x, zero, half, last) h = Slice (x, half, end, last) n = Neg (l)
            t = Concat <axis = -1> (h, n) w = Mul (t, sin) y = Add (p, w) }}""", "", (),
    ),
}  # fmt: skip
# With FLOAT in half precision on the 910B; the kernel of the 310P takes masks of whole blocks of 128 rows.
ATTENTIONS: dict[str, tuple[str, str]] = {
    "few keys for many heads": (f"{QKV} {{ y = Attention (q, k, v) }}", "PromptFlashAttention"),
    "masked": (f"{QKV} {{ y = Attention <scale = 0.3> (q, k, v, kept) }}", ""),
    "masked by hand": (
        f"""{QKV} {{ ku = Unsqueeze (k, heads) ke = Expand (ku, wide) kf = Reshape (ke, flat) vu = Unsqueeze (v, heads) ve = Expand (vu, wide)
            vf = Reshape (ve, flat) kt = Transpose <perm = [0, 1, 3, 2]> (kf) qs = Mul (q, scale) p = MatMul (qs, kt)
            m = Where (kept, none, low) o = Add (p, m) w = Softmax (o) y = MatMul (w, vf) }}""", "",
    ),
    "a step": (
        "(float[2, 6, 1, 16] q, float[2, 2, 7, 16] k, float[2, 2, 7, 16] v, bool[2, 1, 1, 7] m) => (float[2, 6, 1, 16] y) { y = Attention (q, k, v, m) }",
        "IncreFlashAttention",
    ),
}  # fmt: skip


def model(text: str) -> onnx.ModelProto:
    made = model_of(f'<ir_version: 11, opset_import: ["" : 23]>\ng {text}')
    used = {i for n in made.graph.node for i in n.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in WEIGHTS.items() if k in used
    )
    return made


def given(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for port in m.graph.input:
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        made[port.name] = RNG.random(shape) < 0.7 if kind == np.bool_ else f(*shape, dtype=kind)
    return made


@pytest.mark.parametrize("target", [*NEW, *OLD])
@pytest.mark.parametrize(("text", "kernel", "targets"), MODELS.values(), ids=MODELS)
def test_one_node_where_the_chip_has_it(text: str, kernel: str, targets: tuple[str, ...], target: str):
    m = model(text)
    x = given(m)
    made = built(m, target, cpu_fallback="off")
    fused = {"AddRmsNorm", "RmsNorm", "SwiGlu", "RotaryPositionEmbedding"} & set(operators(made))
    # The 910 has RmsNorm and a separate sum.
    norm = {"RmsNorm"} if target == "ascend910" and kernel in ("RmsNorm", "AddRmsNorm") else set()
    assert fused == ({kernel} if target in targets else norm)
    assert worst(simulated(made, x), reference(m, x)) < (1e-6 if target == "ascend910b" and "16[" not in text else 3e-3)


@pytest.mark.thinned
@pytest.mark.parametrize(("text", "older"), ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention_is_one_node_in_half_precision(text: str, older: str):
    m = model(text)
    x = given(m)
    want = reference(m, x)
    for target, mode, kernel in (
        ("ascend910b", "mixed_float16", "FusedInferAttentionScore"), ("ascend910b", "origin", ""), ("ascend310p", "", older),
        ("ascend910", "", ""),
    ):  # fmt: skip
        made = built(m, target, cpu_fallback="off", **({"precision_mode_v2": mode} if mode else {}))
        found = {k for k in operators(made) if "Attention" in k}
        assert found == ({kernel} if kernel else set())
        assert worst(simulated(made, x), want) < (1e-6 if mode == "origin" else 4e-3)


def test_a_growing_past_is_one_graph():
    m = model(
        "(float[1, 6, 1, 16] q, float[1, 2, t, 16] k, float[1, 2, t, 16] v, bool[1, 1, 1, t] m) => (float[1, 6, 1, 16] y) { y = Attention (q, k, v, m) }"
    )
    options = {"dynamic_dims": "t=4;t=8", "cpu_fallback": "off"}
    made = built(m, "ascend910b", precision_mode_v2="mixed_float16", **options)
    assert operators(made)["FusedInferAttentionScore"] == 1
    assert operators(built(m, "ascend310p", **options))["IncreFlashAttention"] == 0
    session = open_session(made, 1, simulate=True)
    for t in (4, 8):
        x = {"q": f(1, 6, 1, 16), "k": f(1, 2, t, 16), "v": f(1, 2, t, 16), "m": np.arange(t).reshape(1, 1, 1, t) != 1}
        assert worst(list(session.run(x).values()), reference(m, x)) < 4e-3


def test_weights_that_are_stored_in_halves_are_gated_by_one_kernel():
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[2, 64] x) => (float[2, 24] y) {
        u = com.microsoft.MatMulNBits <K = 64, N = 24, bits = 4, block_size = 32> (x, wa, sa)
        t = com.microsoft.MatMulNBits <K = 64, N = 24, bits = 4, block_size = 32> (x, wb, sb)
        e = Sigmoid (u) h = Mul (u, e) y = Mul (h, t)
    }"""
    codes = {k: RNG.integers(0, 256, (24, 2, 16)).astype(np.uint8) for k in ("wa", "wb")}
    steps = {k: RNG.uniform(0.02, 0.04, (24, 2)).astype(np.float32) for k in ("sa", "sb")}
    m, x = model_of(text, codes | steps), {"x": f(2, 64)}
    want = onnxruntime.InferenceSession(m.SerializeToString()).run(None, x)
    for target in NEW:
        made = built(m, target, cpu_fallback="off")
        assert operators(made)["SwiGlu"] == 1
        assert worst(simulated(made, x), want) < (2e-6 if target == "ascend910b" else 3e-3)


def flash(e, x, kind: str = "IncreFlashAttention", **attrs):
    given = {"num_heads": 4, "num_key_value_heads": 4, "input_layout": "BNSD", **attrs}
    mask = given.pop("mask", None)
    keys = [x] if kind == "IncreFlashAttention" else x
    return e.op(kind, x, keys, keys, None, None if mask is None else e.constant(mask), out=x.desc, **given)


HALF = ("Ascend310P3", "FLOAT16", (1, 4, 8, 16))
PLANTED = {
    "sums of other shapes": (
        lambda e, x: e.op("AddRmsNorm", x, e.reshape(x, (5, 2)), e.constant(np.ones(5, np.float32)), out=[x.desc, Desc("FLOAT", (2, 1)), x.desc])[0],
        "differ", "Ascend910B1", "FLOAT", (2, 5),
    ),
    "a chip without it": (flash, "no kernel of IncreFlashAttention for FLOAT16", "Ascend310", *HALF[1:]),
    "FLOAT": (lambda e, x: e.op("RotaryPositionEmbedding", x, x, x, out=x.desc), "no kernel", "Ascend310P3", "FLOAT", HALF[2]),
    "heads that do not fit": (lambda e, x: flash(e, x, num_heads=3, num_key_value_heads=3), "is not BNSD of 3 heads", *HALF),
    "too many heads": (lambda e, x: flash(e, x, num_heads=300), "heads of IncreFlashAttention", *HALF),
    "many heads for one": (lambda e, x: flash(e, x, num_heads=36), "heads a group", *HALF),
    "rows that are masked": (
        lambda e, x: flash(e, x, "PromptFlashAttention", mask=np.zeros((1, 1, 8, 8), bool)), "masked rows past 128", *HALF,
    ),
    "a mask that does not fit": (lambda e, x: flash(e, x, mask=np.zeros((3, 8), bool)), "atten_mask is bool", *HALF),
    "a sparse mode": (lambda e, x: flash(e, x, "PromptFlashAttention", sparse_mode=3), "sparse_mode 3", *HALF),
    "a short row": (
        lambda e, x: e.op("RmsNorm", x, e.constant(np.ones(4, np.float16)), out=[x.desc, Desc("FLOAT", (2, 1))])[0],
        "bytes of a row", "Ascend310P3", "FLOAT16", (2, 4),
    ),
    "weights that do not fit": (
        lambda e, x: e.op("RmsNorm", x, e.constant(np.ones(3, np.float32)), out=[x.desc, Desc("FLOAT", (2, 1))])[0],
        "gamma .* does not fit", "Ascend910B1", "FLOAT", (2, 16),
    ),
    "odd halves": (lambda e, x: e.op("SwiGlu", x, out=Desc("FLOAT", (2, 2)), dim=-1), "no two halves", "Ascend910B1", "FLOAT", (2, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said", "soc", "dtype", "shape"), PLANTED.values(), ids=PLANTED)
def test_what_the_simulator_refuses(make, said: str, soc: str, dtype: str, shape: tuple[int, ...]):
    kind = {"FLOAT": np.float32, "FLOAT16": np.float16}[dtype]
    with pytest.raises(BadGraph, match=said):
        loaded(make, soc, "origin", dtype, shape).run([np.zeros(shape, kind)])
