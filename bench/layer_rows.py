"""Rows of `bench/operators.py` that are layers: windows, products, recurrent layers, and what com.microsoft has of them."""

from __future__ import annotations

from collections.abc import Iterator

from operator_row import IMAGE, LINE, REALS, ROWS_OF, Extents, Row

_CONV = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"


def windows() -> Iterator[Row]:
    yield Row("Conv 1x1", "T[N,c,H,W] x, T[c,c,1,1] w", "y = Conv (x, w)", IMAGE, REALS, weights="w")
    yield Row(
        "Conv 3x3", "T[N,c,H,W] x, T[c,c,3,3] w, T[c] b", f"y = Conv <{_CONV}> (x, w, b)", IMAGE, REALS, weights="wb"
    )
    yield Row(
        "Conv 3x3 stride 2",
        "T[N,c,H,W] x, T[c,c,3,3] w",
        f"y = Conv <{_CONV}, strides = [2, 2]> (x, w)",
        IMAGE,
        weights="w",
    )
    yield Row(
        "Conv 3x3 dilated",
        "T[N,c,H,W] x, T[c,c,3,3] w",
        "y = Conv <kernel_shape = [3, 3], pads = [2, 2, 2, 2], dilations = [2, 2]> (x, w)",
        IMAGE,
        weights="w",
    )
    yield Row(
        "Conv 3x3 of 4 groups",
        "T[N,c,H,W] x, T[c,g,3,3] w",
        f"y = Conv <{_CONV}, group = 4> (x, w)",
        {**IMAGE, "g": (4, 16, 16)},
        weights="w",
    )
    yield Row(
        "Conv 7x7 of a picture",
        "T[N,3,H,W] x, T[64,3,7,7] w",
        "y = Conv <pads = [3, 3, 3, 3], strides = [2, 2]> (x, w)",
        {"N": 1, "H": (32, 112, 320), "W": (32, 112, 320)},
        weights="w",
    )
    for k in (3, 7, 31):
        extents = {
            "N": 1,
            "C": 64,
            "H": (14, 28, 56 if k == 31 else 112),
            "W": (14, 28, 56 if k == 31 else 112),
            "c": 64,
        }
        node = f"y = Conv <group = 64, pads = [{k // 2}, {k // 2}, {k // 2}, {k // 2}]> (x, w)"
        yield Row(f"Conv {k}x{k} by channel", f"T[N,c,H,W] x, T[c,1,{k},{k}] w", node, extents, weights="w")
    yield Row(
        "Conv 1-d",
        "T[N,c,L] x, T[c,c,5] w",
        "y = Conv <pads = [2, 2]> (x, w)",
        {"N": 1, "c": (16, 64, 128), "L": (64, 512, 4096)},
        weights="w",
    )
    yield Row(
        "Conv 3-d",
        "T[N,c,D,H,H] x, T[c,c,3,3,3] w",
        "y = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w)",
        {"N": 1, "c": (4, 16, 32), "D": (4, 8, 16), "H": (8, 16, 32)},
        weights="w",
    )
    yield Row(
        "ConvTranspose",
        "T[N,c,H,W] x, T[c,c,4,4] w",
        "y = ConvTranspose <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)",
        {**IMAGE, "H": (7, 28, 80), "W": (7, 28, 80)},
        weights="w",
    )
    pool = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
    for op in ("MaxPool", "AveragePool", "LpPool"):
        yield Row(op, "T[N,c,H,W] x", f"y = {op} <{pool}> (x)", IMAGE)
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield Row(op, "T[N,c,H,W] x", f"y = {op} (x)", IMAGE)
    for mode in ("nearest", "linear", "cubic"):
        node = f'y = Resize <mode = "{mode}"> (x, , s)'
        yield Row(
            f"Resize {mode} by 2",
            "T[N,c,H,W] x, float[4] s",
            node,
            {**IMAGE, "H": (14, 28, 80), "W": (14, 28, 80)},
            constants={"s": [1.0, 1.0, 2.0, 2.0]},
        )
    for mode in ("linear", "nearest", "cubic"):
        node = f'y = GridSample <mode = "{mode}"> (x, g)'
        yield Row(
            f"GridSample {mode}",
            "T[N,c,H,W] x, T[N,H,W,2] g",
            node,
            {**IMAGE, "H": (14, 32, 96), "W": (14, 32, 96)},
            ranges={"g": (-1.0, 1.0)},
        )
    yield Row("RoiAlign", "T[1,c,50,50] x, T[R,4] r, int64[R] b", "y = RoiAlign <output_height = 7, output_width = 7, sampling_ratio = 2> (x, r, b)",
              {"c": 64, "R": (4, 32, 256)}, ranges={"r": (0.0, 40.0), "b": (0, 1)}, opset=16)  # fmt: skip
    yield Row("NonMaxSuppression", "float[1,M,4] b, float[1,k,M] s, int64 m, float i, float t", "y = NonMaxSuppression (b, s, m, i, t)",
              {"M": (100, 1000, 4000), "k": (1, 5, 20)}, constants={"m": 100, "i": 0.5, "t": 0.3}, ranges={"b": (0.0, 1.0), "s": (0.0, 1.0)})  # fmt: skip
    yield Row("DFT", "T[N,C,1] x", "y = DFT <axis = 1> (x)", {"N": (1, 16, 64), "C": (128, 512, 1024)}, opset=19)


def _times(letter: str, gates: int) -> dict[str, tuple[int, int, int]]:
    """Extents of the stacked gates of a recurrent layer."""
    return {letter: (gates * 64, gates * 128, gates * 256)}


def products() -> Iterator[Row]:
    square: Extents = {"M": (1, 128, 512), "k": (256, 768, 1024), "n": (256, 768, 1024)}
    yield Row("MatMul", "T[M,k] a, T[k,n] w", "y = MatMul (a, w)", square, ("float", "float16", "double"), weights="w")
    yield Row("MatMul of one row", "T[1,k] a, T[k,n] w", "y = MatMul (a, w)", square, REALS, weights="w")
    yield Row(
        "MatMul of two inputs",
        "T[N,H,S,64] a, T[N,H,64,S] b",
        "y = MatMul (a, b)",
        {"N": 1, "H": 12, "S": (16, 128, 384)},
    )
    yield Row("Gemm", "T[M,k] a, T[n,k] w, T[n] b", "y = Gemm <transB = 1> (a, w, b)", square, REALS, weights="wb")
    yield Row(
        "Einsum",
        "T[N,S,k] a, T[N,R,k] b",
        'y = Einsum <equation = "bik,bjk->bij"> (a, b)',
        {"N": (1, 8, 12), "S": (16, 128, 384), "R": (16, 128, 384), "k": 64},
    )
    yield Row("MatMulInteger", "uint8[M,k] a, int8[k,n] w", "y = MatMulInteger (a, w)", square, weights="w")
    scales = {"s": 0.02, "z": 128, "t": 0.01, "o": 0, "u": 0.5, "v": 128}
    inputs = "uint8[M,k] a, float s, uint8 z, int8[k,n] w, float t, int8 o, float u, uint8 v"
    yield Row(
        "QLinearMatMul", inputs, "y = QLinearMatMul (a, s, z, w, t, o, u, v)", square, weights="w", constants=scales
    )
    inputs = "uint8[N,c,H,W] a, float s, uint8 z, int8[c,c,3,3] w, float t, int8 o, float u, uint8 v"
    yield Row(
        "QLinearConv",
        inputs,
        f"y = QLinearConv <{_CONV}> (a, s, z, w, t, o, u, v)",
        IMAGE,
        weights="w",
        constants=scales,
    )
    yield Row(
        "ConvInteger", "uint8[N,c,H,W] a, int8[c,c,3,3] w", f"y = ConvInteger <{_CONV}> (a, w)", IMAGE, weights="w"
    )
    codes = {"s": 0.02, "z": 128}
    yield Row("QuantizeLinear", "float[N,C] x, float s, uint8 z", "y = QuantizeLinear (x, s, z)", LINE, constants=codes)
    yield Row(
        "DequantizeLinear", "uint8[N,C] x, float s, uint8 z", "y = DequantizeLinear (x, s, z)", LINE, constants=codes
    )
    yield Row("DynamicQuantizeLinear", "float[N,C] x", "y, s, z = DynamicQuantizeLinear (x)", LINE)
    for op, gates, bias in ("LSTM", 4, 8), ("GRU", 3, 6), ("RNN", 1, 2):
        for title, d, kind in (op, 1, "forward"), (f"{op} both ways", 2, "bidirectional"):
            inputs = f"T[S,N,c] x, T[{d},g,c] w, T[{d},g,h] r, T[{d},b] b"
            node = f'y, h = {op} <hidden_size = %h, direction = "{kind}"> (x, w, r, b)'
            extents = {
                "S": (8, 32, 64),
                "N": (1, 1, 16),
                "c": (64, 128, 256),
                "h": (64, 128, 256),
                **_times("g", gates),
                **_times("b", bias),
            }
            yield Row(title, inputs, node, extents, weights="wrb", ranges=dict.fromkeys("wrb", (-0.2, 0.2)))
    yield Row(
        "Attention",
        "T[N,12,S,64] q, T[N,12,S,64] k, T[N,12,S,64] v",
        "y = Attention (q, k, v)",
        {"N": 1, "S": (16, 128, 384)},
        opset=23,
    )
    yield Row("Det", "T[N,4,4] x", "y = Det (x)", {"N": (1, 64, 4096)})


def microsoft() -> Iterator[Row]:
    ms = "com.microsoft."
    for op in ("Gelu", "QuickGelu", "FastGelu"):
        yield Row(f"ms {op}", "T[N,C] x", f"y = {ms}{op} (x)", LINE)
    yield Row("ms BiasGelu", "T[N,C] x, T[C] b", f"y = {ms}BiasGelu (x, b)", ROWS_OF, weights="b")
    inputs = "T[1,N,C] x, T[1,N,C] p, T[C] g"
    yield Row(
        "ms SkipSimplifiedLayerNormalization",
        inputs,
        f"y = {ms}SkipSimplifiedLayerNormalization (x, p, g)",
        ROWS_OF,
        weights="g",
    )
    yield Row(
        "ms SkipLayerNormalization",
        f"{inputs}, T[C] b",
        f"y = {ms}SkipLayerNormalization (x, p, g, b)",
        ROWS_OF,
        weights="gb",
    )
    square: Extents = {"M": (1, 128, 512), "k": (256, 768, 1024), "n": (256, 768, 1024)}
    yield Row(
        "ms FusedMatMul",
        "T[M,k] a, T[n,k] w",
        f"y = {ms}FusedMatMul <transB = 1, alpha = 0.5> (a, w)",
        square,
        weights="w",
    )
    yield Row(
        "ms DynamicQuantizeMatMul",
        "float[M,k] a, int8[k,n] w, float s, int8 z",
        f"y = {ms}DynamicQuantizeMatMul (a, w, s, z)",
        square,
        weights="w",
        constants={"s": 0.02, "z": 0},
    )
    nbits = {**square, "g": (8, 24, 32)}
    for level in (0, 4):
        node = f"y = {ms}MatMulNBits <K = %k, N = %n, bits = 4, block_size = 32, accuracy_level = {level}> (a, w, s)"
        yield Row(
            f"ms MatMulNBits level {level}",
            "T[M,k] a, uint8[n,g,16] w, T[n,g] s",
            node,
            nbits,
            weights="ws",
            ranges={"s": (0.01, 0.02)},
            tolerance=5e-3 if level == 4 else 0.0,
        )
    attention: Extents = {"S": (16, 128, 384)}
    yield Row(
        "ms MultiHeadAttention",
        "T[1,S,768] q, T[1,S,768] k, T[1,S,768] v",
        f"y = {ms}MultiHeadAttention <num_heads = 12> (q, k, v)",
        attention,
    )
    yield Row(
        "ms Attention",
        "T[1,S,768] x, T[768,2304] w, T[2304] b",
        f"y = {ms}Attention <num_heads = 12> (x, w, b)",
        attention,
        weights="wb",
        ranges={"w": (-0.1, 0.1)},
    )
    scales = {"s": 0.02, "z": 128, "t": 0.01, "o": 120, "u": 0.05, "v": 128}
    inputs = "uint8[N,C] a, float s, uint8 z, uint8[N,C] b, float t, uint8 o, float u, uint8 v"
    for op in ("QLinearAdd", "QLinearMul"):
        yield Row(f"ms {op}", inputs, f"y = {ms}{op} (a, s, z, b, t, o, u, v)", LINE, constants=scales)
    for op in ("QLinearSigmoid", "QLinearLeakyRelu"):
        yield Row(
            f"ms {op}",
            "uint8[N,C] a, float s, uint8 z, float u, uint8 v",
            f"y = {ms}{op} (a, s, z, u, v)",
            LINE,
            constants={k: scales[k] for k in "szuv"},
        )
    yield Row(
        "ms QLinearGlobalAveragePool",
        "uint8[N,c,H,W] a, float s, uint8 z, float u, uint8 v",
        f"y = {ms}QLinearGlobalAveragePool (a, s, z, u, v)",
        IMAGE,
        constants={k: scales[k] for k in "szuv"},
    )
    yield Row(
        "ms RotaryEmbedding",
        "T[1,12,S,64] x, int64[1,S] i, T[512,32] c, T[512,32] s",
        f"y = {ms}RotaryEmbedding (x, i, c, s)",
        attention,
        weights="cs",
        ranges={"i": (0, 16)},
    )
    yield Row("ms Inverse", "T[N,4,4] x", f"y = {ms}Inverse (x)", {"N": (1, 64, 1024)})
    yield Row(
        "ms CDist",
        "T[N,64] a, T[M,64] b",
        f'y = {ms}CDist <metric = "sqeuclidean"> (a, b)',
        {"N": (8, 128, 1000), "M": (8, 128, 1000)},
    )
