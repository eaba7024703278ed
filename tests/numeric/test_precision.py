"""Products with rounded operands (`-C precision`): their error against float64 by shape, and that the option does something."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import machines
import ml_dtypes
import numpy as np
import onnx
import pytest
from building import model_of

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.objects.processors import PROCESSORS
from occ.runtime.session import Session

BF16, INT8 = {"precision": "bf16"}, {"precision": "int8"}
WITH, WITHOUT = {"halide.target": PROCESSORS["znver4"]}, {"halide.target": "x86-64-linux-avx2-fma"}

# rows, inner extent, columns: layers of transformers, then what fills neither pairs nor panels
SHAPES = [(128, 768, 768), (64, 768, 3072), (64, 3072, 768), (1, 768, 3072), (5, 512, 512), (197, 384, 1000),
          (53, 177, 83), (1, 1025, 333), (50, 1000, 71), (20, 4097, 65)]  # fmt: skip


def random(*shapes: Sequence[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def rms(got: np.ndarray, exact: np.ndarray) -> float:
    """The error in parts of the root mean square of the exact result."""
    return float(np.sqrt(np.mean((got - exact) ** 2) / np.mean(exact**2)))


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def matmul(m: int | str, k: int, n: int) -> str:
    return f"g (float[{m}, {k}] x) => (float[{m}, {n}] y) {{ y = MatMul(x, w) }}"


def opened(model: onnx.ModelProto, **options: str) -> Session:
    return machines.opened(Compilation(model, Settings("cpu", options=options, verify=True)).artifact(), 2)


def op_names(model: onnx.ModelProto, **options: str) -> set[str]:
    return {op.name for op in Compilation(model, Settings("cpu", options=options)).advance("fused").walk()}


@pytest.mark.thinned
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_of_bf16_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, w = random((m, k), (k, n))
    (y,) = opened(model_of(matmul(m, k, n), {"w": w}), **BF16)(x)
    assert 1e-3 < rms(y, x.astype(np.float64) @ w) < 3e-3
    assert rms(y, rounded(x) @ rounded(w)) < 3e-6  # nothing but the operands is rounded


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build for x86-64")
def test_products_are_made_of_pairs_where_the_processor_has_the_instruction(tmp_path: Path) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    (w,) = random((768, 768))
    model = model_of(matmul(128, 768, 768), {"w": w})
    assert "matmul_dot" in op_names(model, **BF16, **WITH)
    (tmp_path / "model.so").write_bytes(Compilation(model, Settings("cpu", options=BF16 | WITH)).artifact().code)
    done = subprocess.run(["objdump", "-d", str(tmp_path / "model.so")], capture_output=True, text=True, check=True)
    assert sum("vdpbf16ps" in line and "zmm" in line for line in done.stdout.splitlines()) >= 32


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build for x86-64")
def test_processors_without_the_instruction_give_the_same() -> None:
    x, w = random((37, 301), (301, 130))
    model = model_of(matmul(37, 301, 130), {"w": w})
    assert "matmul_dot" not in op_names(model, **BF16, **WITHOUT)
    (y,) = opened(model, **BF16, **WITHOUT)(x)
    assert rms(y, rounded(x) @ rounded(w)) < 1e-6


def test_nothing_is_rounded_unless_asked_for() -> None:
    x, w = random((64, 256), (256, 256))
    model = model_of(matmul(64, 256, 256), {"w": w})
    assert "matmul_dot" not in op_names(model)
    assert rms(opened(model)(x)[0], x.astype(np.float64) @ w) < 1e-6


@pytest.mark.parametrize(
    ("options", "shape"),
    [(BF16, (64, 16, 16)), (BF16, (999, 500, 4)), (INT8, (9, 64, 64)), (INT8, (999, 500, 32))],
    ids=str,
)
def test_short_products_and_those_of_few_columns_are_left(options: dict[str, str], shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, w = random((m, k), (k, n))
    (y,) = opened(model_of(matmul(m, k, n), {"w": w}), **options)(x)
    assert rms(y, x.astype(np.float64) @ w) < 1e-6


def test_convolutions_of_one_filter_are_left() -> None:
    (w,) = random((1, 32, 3, 3))
    text = "g (float[1, 32, 40, 40] x) => (float[1, 1, 38, 38] y) { y = Conv(x, w) }"
    assert "Conv" in op_names(model_of(text, {"w": w}), **BF16)


def test_bias_activation_residual_and_batches() -> None:
    """Two products read one value; one of them has all that an epilogue can have. The number of rows is a symbol."""
    x, w, v, b = random((2, 9, 192), (192, 192), (192, 192), (192,))
    text = """g (float[2, s, 192] x) => (float[2, s, 192] y, float[2, s, 192] z) {
        m = MatMul(x, w)
        a = Add(m, b)
        t = Tanh(a)
        y = Add(t, x)
        z = MatMul(x, v)
    }"""
    model = model_of(text, {"w": w, "v": v, "b": b})
    session = opened(model, **BF16)
    for rows in (9, 1, 4):
        y, z = session(x[:, :rows])
        exact = rounded(x[:, :rows])
        assert rms(y, np.tanh(exact @ rounded(w) + b) + x[:, :rows]) < 1e-6
        assert rms(z, exact @ rounded(v)) < 1e-6


@pytest.mark.parametrize(("trans", "beta"), [(0, 1.0), (1, 1.0), (1, 0.5)])
def test_gemm(trans: int, beta: float) -> None:
    x, w, c = random((51, 100), (100, 61), (61,))
    text = f"g (float[51, 100] x) => (float[51, 61] y) {{ y = Gemm<transB = {trans}, beta = {beta}>(x, w, c) }}"
    session = opened(model_of(text, {"w": np.ascontiguousarray(w.T) if trans else w, "c": c}), **BF16)
    assert rms(session(x)[0], rounded(x) @ rounded(w) + beta * c) < 1e-6


@pytest.mark.parametrize(
    ("channels", "out", "taps", "how"),
    [
        (64, 96, 1, "group = 1"),
        (33, 270, 1, "strides = [2, 2]"),
        (32, 40, 3, "pads = [1, 0, 1, 2], strides = [2, 2]"),
        (24, 32, 3, "dilations = [2, 2], pads = [2, 2, 2, 2]"),
    ],
)
def test_convolutions(channels: int, out: int, taps: int, how: str) -> None:
    x, w, b = random((2, channels, 17, 11), (out, channels, taps, taps), (out,))
    text = f"""g (float[2, {channels}, 17, 11] x) => (float[2, {out}, p, q] y) {{
        c = Conv<{how}>(x, w, b)
        y = Relu(c)
    }}"""
    (y,) = opened(model_of(text, {"w": w, "b": b}), **BF16)(x)
    wide = model_of(text.replace("float", "double"), {"w": rounded(w), "b": b.astype(np.float64)})
    (exact,) = onnx.reference.ReferenceEvaluator(wide).run(None, {"x": rounded(x)})
    assert rms(y, exact) < 1e-6


def test_infinities_and_nan_stay() -> None:
    x, w = random((6, 512), (512, 128))
    x[0, 3] = np.nan
    x[1, 4] = np.array(0x7F800001, np.uint32).view(np.float32)  # whose payload is in the bits that are cut off
    x[2, 5] = np.array(0xFFFFFFFF, np.uint32).view(np.float32)  # which rounding upward would make 0
    x[3, 6], x[4, 7] = np.inf, -np.inf
    (y,) = opened(model_of(matmul(6, 512, 128), {"w": w}), **BF16)(x)
    assert np.isnan(y[:3]).all()
    assert np.array_equal(y[3], np.inf * w[6])
    assert np.array_equal(y[4], -np.inf * w[7])
    assert np.isfinite(y[5]).all()


def test_casts_to_bf16_round_every_pattern_as_ml_dtypes_does() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 1 << 16, np.uint32)
    bits[:6] = 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF, 0x00008000, 0x3F808000, 0x3F818000
    x = bits.view(np.float32)
    (y,) = occ.compile(model_of("g (float[n] x) => (bfloat16[n] y) { y = Cast<to = 16>(x) }"), "cpu")(x)
    with np.errstate(invalid="ignore"):
        want = x.astype(ml_dtypes.bfloat16)
    number = ~np.isnan(x)
    assert np.array_equal(y.view(np.uint16)[number], want.view(np.uint16)[number])
    assert np.isnan(y.astype(np.float32)[~number]).all()


@pytest.mark.thinned
@pytest.mark.parametrize("gemm", [False, True], ids=["matmul", "gemm"])
def test_models_in_bf16_need_no_option(gemm: bool) -> None:
    x, w, c = (v.astype(ml_dtypes.bfloat16) for v in random((51, 301), (301, 61), (61,)))
    text = f"""g (bfloat16[n, 301] x) => (bfloat16[n, 61] y) {{
        p = {"Gemm(x, w, c)" if gemm else "MatMul(x, w)"}
        y = Relu(p)
    }}"""
    model = model_of(text, {"w": w, "c": c})
    assert "matmul_dot" in op_names(model, **WITH)
    exact = x.astype(np.float64) @ w.astype(np.float64) + gemm * c.astype(np.float64)
    (y,) = opened(model)(x)
    assert y.dtype == x.dtype
    assert np.all(np.abs(y.astype(np.float64) - np.maximum(exact, 0)) <= 1.01 * 2.0**-8 * np.abs(exact) + 1e-4)


def coded(x: np.ndarray) -> np.ndarray:
    """Rows in 255 steps between their extremes."""
    wide = x.astype(np.float64)
    low, high = wide.min(-1, keepdims=True), wide.max(-1, keepdims=True)
    step = (high - low) / 255
    return low + np.rint((wide - low) / step) * step


def coded_columns(w: np.ndarray) -> np.ndarray:
    """Columns in steps of a 127th of their greatest magnitude."""
    step = np.abs(w).max(0) / 127.0
    return np.rint(w / step) * step


def weight_codes(model: onnx.ModelProto) -> tuple[np.ndarray, np.ndarray]:
    """The codes and steps that the only product of a model has."""
    module = Compilation(model, Settings("cpu", options=INT8)).advance("fused")
    ops = {op.name: op for op in module.walk()}
    codes, scale = ops["matmul_dot"].operands[1], ops["from_row_codes"].operands[2]
    return codes.data.reshape(-1, codes.data.shape[-1]).astype(np.float64), scale.data.astype(np.float64)


@pytest.mark.thinned
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_of_int8_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, w = random((m, k), (k, n))
    (y,) = opened(model_of(matmul(m, k, n), {"w": w}), **INT8)(x)
    assert 5e-3 < rms(y, x.astype(np.float64) @ w) < 1.5e-2
    # Nothing but the operands is rounded; a few numbers halfway between codes go the other way in f32.
    assert rms(y, coded(x) @ coded_columns(w)) < 4e-4


@pytest.mark.thinned
@pytest.mark.parametrize("form", ["per channel", "per tensor", "multiplied"])
def test_codes_that_a_model_stores_are_taken_as_they_are(form: str) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(-127, 128, (300, 200)).astype(np.int8)
    codes[:, 5] = codes[:, 5] // 3  # columns that do not use the whole range
    codes[:, 6] = 0
    codes[0, 7] = -128
    scale = (np.full(200, 0.013) if form == "per tensor" else rng.uniform(1e-3, 1e-1, 200)).astype(np.float32)
    weights = {"q": codes, "s": scale[0] if form == "per tensor" else scale}
    weight = "w = DequantizeLinear(q, s)"
    if form == "per channel":
        weight = "w = DequantizeLinear<axis = 1>(q, s)"
    elif form == "multiplied":
        weight, weights["s"] = "f = Cast<to = 1>(q) w = Mul(f, s)", scale[None]
    model = model_of(f"g (float[64, 300] x) => (float[64, 200] y) {{ {weight} y = MatMul(x, w) }}", weights)
    got, steps = weight_codes(model)
    np.testing.assert_allclose(got * steps, codes * scale.astype(np.float64), rtol=1e-6)
    assert np.array_equal(got[:, 8:], codes[:, 8:])
    (x,) = random((64, 300))
    assert rms(opened(model, **INT8)(x)[0], coded(x) @ (codes * scale.astype(np.float64))) < 4e-4


def test_int8_with_bias_activation_residual_and_batches() -> None:
    x, w, v, b = random((2, 9, 192), (192, 192), (192, 90), (192,))
    text = """g (float[2, s, 192] x) => (float[2, s, 192] y, float[2, s, 90] z) {
        m = MatMul(x, w)
        a = Add(m, b)
        t = Relu(a)
        y = Add(t, x)
        z = MatMul(x, v)
    }"""
    session = opened(model_of(text, {"w": w, "v": v, "b": b}), **INT8)
    for rows in (9, 1, 4):
        part = x[:, :rows]
        y, z = session(part)
        assert rms(y, np.maximum(coded(part) @ coded_columns(w) + b, 0) + part) < 1e-3
        assert rms(z, coded(part) @ coded_columns(v)) < 1e-3


@pytest.mark.thinned
@pytest.mark.parametrize("trans", [0, 1])
def test_int8_gemm(trans: int) -> None:
    x, w, c = random((51, 202), (202, 71), (71,))
    text = f"g (float[51, 202] x) => (float[51, 71] y) {{ y = Gemm<transB = {trans}>(x, w, c) }}"
    model = model_of(text, {"w": np.ascontiguousarray(w.T) if trans else w, "c": c})
    assert {"matmul_dot", "from_row_codes"} <= op_names(model, **INT8)
    assert rms(opened(model, **INT8)(x)[0], coded(x) @ coded_columns(w) + c) < 1e-3


def test_int8_rows_of_one_value_of_few_or_of_none() -> None:
    x, w = random((7, 300), (300, 200))
    x[0], x[1], x[2], x[3] = 0, 3.5, np.maximum(x[2], 0), x[3] * 1e-20
    x[4, 7], x[5, 8] = np.nan, np.inf
    (y,) = opened(model_of(matmul(7, 300, 200), {"w": w}), **INT8)(x)
    assert not y[0].any()
    assert rms(y[1], x[1].astype(np.float64) @ coded_columns(w)) < 1e-6
    for k in (2, 3, 6):
        assert rms(y[k], coded(x[k]) @ coded_columns(w)) < 1e-3
    assert np.isnan(y[4]).all()
    assert not np.isfinite(y[5]).any()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build for x86-64")
def test_int8_on_processors_without_the_instruction() -> None:
    x, w = random((37, 301), (301, 130))
    (y,) = opened(model_of(matmul(37, 301, 130), {"w": w}), **INT8, **WITHOUT)(x)
    assert rms(y, coded(x) @ coded_columns(w)) < 4e-4


BLOCK = """
        h@ = LayerNormalization(x@, one, zero)
        q@ = MatMul(h@, q)
        k@ = MatMul(h@, k)
        v@ = MatMul(h@, v)
        qr@ = Reshape(q@, heads)
        kr@ = Reshape(k@, heads)
        vr@ = Reshape(v@, heads)
        qh@ = Transpose<perm = [0, 2, 1, 3]>(qr@)
        kh@ = Transpose<perm = [0, 2, 3, 1]>(kr@)
        vh@ = Transpose<perm = [0, 2, 1, 3]>(vr@)
        l@ = MatMul(qh@, kh@)
        m@ = Mul(l@, eighth)
        p@ = Softmax<axis = -1>(m@)
        a@ = MatMul(p@, vh@)
        at@ = Transpose<perm = [0, 2, 1, 3]>(a@)
        ar@ = Reshape(at@, flat)
        o@ = MatMul(ar@, o)
        r@ = Add(o@, x@)
        n@ = LayerNormalization(r@, one, zero)
        u@ = MatMul(n@, u)
        g@ = Gelu(u@)
        d@ = MatMul(g@, d)
        x# = Add(d@, r@)
"""


@pytest.mark.thinned
@pytest.mark.parametrize(("options", "most"), [(BF16, 5e-3), (INT8, 2.5e-2)], ids=["bf16", "int8"])
def test_two_layers_of_a_transformer(options: dict[str, str], most: float) -> None:
    wide = 192
    rng = np.random.default_rng(11)
    shapes = {**dict.fromkeys("qkvo", (wide, wide)), "u": (wide, 4 * wide), "d": (4 * wide, wide)}
    weights = {n: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for n, s in shapes.items()}
    weights |= {"one": np.ones(wide, np.float32), "zero": np.zeros(wide, np.float32), "eighth": np.float32(1 / 8)}
    weights |= {"heads": np.int64([1, -1, 3, 64]), "flat": np.int64([1, -1, wide])}
    blocks = "".join(BLOCK.replace("@", str(k)).replace("#", str(k + 1)) for k in range(2))
    text = f"g (float[1, s, {wide}] x0) => (float[1, s, {wide}] x2) {{ {blocks} }}"
    model = model_of(text, weights)
    for machine, product in ((WITH, "matmul_dot"), (WITHOUT, "matmul_dot" if options is INT8 else "MatMul")):
        assert {product, "attend"} <= op_names(model, **options, **machine)
    (x,) = random((1, 40, wide))
    (exact,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x0": x})
    (y,) = opened(model, **options)(x)
    assert most / 10 < rms(y, exact) < most


@pytest.mark.parametrize("target", ["cpu-jit", "interp"])
def test_other_targets_refuse_the_option(target: str) -> None:
    with pytest.raises(CompileError, match="precision"):
        Compilation(model_of(matmul(4, 4, 4), {"w": np.eye(4, dtype=np.float32)}), Settings(target, options=BF16))
