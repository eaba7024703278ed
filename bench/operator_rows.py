"""The operators that `bench/operators.py` measures: those of elements, of rows, and of movement here, layers next door."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from layer_rows import microsoft, products, windows
from operator_row import IMAGE, LINE, REALS, ROWS_OF, Range, Row

_POSITIVE: Range = (0.1, 2.0)
_UNIT: Range = (-0.9, 0.9)

_UNARY: Mapping[str, Range] = {
    **dict.fromkeys(["Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Sin", "Cos", "Ceil", "Floor", "Round", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Sign", "Atan"], (-3.0, 3.0)),
    **dict.fromkeys(["HardSigmoid", "HardSwish", "LeakyRelu", "ThresholdedRelu", "Mish", "Gelu", "Identity", "Sinh", "Cosh", "Asinh", "Tan"], (-1.0, 1.0)),
    **dict.fromkeys(["Asin", "Acos", "Atanh"], _UNIT), **dict.fromkeys(["Log", "Sqrt", "Reciprocal"], _POSITIVE), "Acosh": (1.1, 3.0),
}  # fmt: skip


def _elementwise() -> Iterator[Row]:
    for op, bounds in _UNARY.items():
        types = (
            REALS
            if op in ("Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu")
            else ("float", "double")
            if op in ("Exp", "Log")
            else ("float",)
        )
        yield Row(op, "T[N,C] x", f"y = {op} (x)", LINE, types, ranges={"x": bounds})
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        types = ("float", "float16", "int64", "int32") if op in ("Add", "Mul", "Max") else ("float", "int64")
        yield Row(op, "T[N,C] a, T[N,C] b", f"y = {op} (a, b)", LINE, types, ranges={"b": (1, 9)})
    yield Row("Add of a bias", "T[N,C] a, T[C] b", "y = Add (a, b)", LINE, REALS)
    yield Row("Mul by channel", "T[N,c,H,W] a, T[c,1,1] b", "y = Mul (a, b)", IMAGE, REALS)
    yield Row("Pow", "T[N,C] a, T[N,C] b", "y = Pow (a, b)", LINE, ranges={"a": _POSITIVE})
    yield Row("Pow square", "T[N,C] a, T b", "y = Pow (a, b)", LINE, constants={"b": 2.0})
    yield Row("Mod", "T[N,C] a, T[N,C] b", "y = Mod (a, b)", LINE, ("int64", "int32"), ranges={"b": (1, 9)})
    yield Row("PRelu", "T[N,c,H,W] a, T[c,1,1] b", "y = PRelu (a, b)", IMAGE, weights="b")
    for op in ("Equal", "Greater", "LessOrEqual"):
        yield Row(op, "T[N,C] a, T[N,C] b", f"y = {op} (a, b)", LINE, ("float", "int64"))
    for op in ("And", "Or", "Xor"):
        yield Row(op, "bool[N,C] a, bool[N,C] b", f"y = {op} (a, b)", LINE)
    yield Row("Not", "bool[N,C] a", "y = Not (a)", LINE)
    yield Row("BitwiseAnd", "T[N,C] a, T[N,C] b", "y = BitwiseAnd (a, b)", LINE, ("int32", "uint8"))
    yield Row(
        "BitShift",
        "T[N,C] a, T[N,C] b",
        'y = BitShift <direction = "LEFT"> (a, b)',
        LINE,
        ("uint32",),
        ranges={"b": (0, 7)},
    )
    yield Row("Where", "bool[N,C] c, T[N,C] a, T[N,C] b", "y = Where (c, a, b)", LINE, ("float", "int64"))
    yield Row("Clip", "T[N,C] x, T a, T b", "y = Clip (x, a, b)", LINE, REALS, constants={"a": -1.0, "b": 1.0})
    for op in ("IsNaN", "IsInf"):
        yield Row(op, "T[N,C] x", f"y = {op} (x)", LINE)
    for source, to, kind in (
        ("float", 10, "f16"),
        ("float16", 1, "f32"),
        ("float", 7, "i64"),
        ("int64", 1, "f32"),
        ("uint8", 1, "f32"),
        ("bool", 1, "f32"),
    ):
        yield Row(f"Cast {source} to {kind}", f"{source}[N,C] x", f"y = Cast <to = {to}> (x)", LINE)
    for op in ("Sum", "Mean"):
        yield Row(op, "T[N,C] a, T[N,C] b, T[N,C] c", f"y = {op} (a, b, c)", LINE)


def _by_rows() -> Iterator[Row]:
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        yield Row(op, "T[N,C] x", f"y = {op} <axis = -1> (x)", LINE, ("float",) if op == "Hardmax" else REALS)
    yield Row("Softmax of channels", "T[N,c,H,W] x", "y = Softmax <axis = 1> (x)", IMAGE)
    yield Row("LogSoftmax of a vocabulary", "T[1,C] x", "y = LogSoftmax <axis = -1> (x)", {"C": (8000, 32000, 128000)})
    yield Row(
        "LayerNormalization",
        "T[N,C] x, T[C] s, T[C] b",
        "y = LayerNormalization (x, s, b)",
        ROWS_OF,
        REALS,
        weights="sb",
    )
    yield Row("RMSNormalization", "T[N,C] x, T[C] s", "y = RMSNormalization (x, s)", ROWS_OF, weights="s", opset=23)
    yield Row("LpNormalization", "T[N,C] x", "y = LpNormalization <axis = -1> (x)", ROWS_OF)
    yield Row("MeanVarianceNormalization", "T[N,c,H,W] x", "y = MeanVarianceNormalization (x)", IMAGE)
    yield Row(
        "InstanceNormalization",
        "T[N,c,H,W] x, T[c] s, T[c] b",
        "y = InstanceNormalization (x, s, b)",
        IMAGE,
        weights="sb",
    )
    group = "y = GroupNormalization <num_groups = 8> (x, s, b)"
    yield Row("GroupNormalization", "T[N,c,H,W] x, T[c] s, T[c] b", group, IMAGE, weights="sb")
    batch = "y = BatchNormalization (x, s, b, m, v)"
    yield Row(
        "BatchNormalization",
        "T[N,c,H,W] x, T[c] s, T[c] b, T[c] m, T[c] v",
        batch,
        IMAGE,
        weights="sbmv",
        ranges={"v": _POSITIVE},
    )
    yield Row("LRN", "T[N,c,H,W] x", "y = LRN <size = 5> (x)", IMAGE)
    for op in [
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
        "ReduceLogSum",
    ]:
        types = ("float", "int64") if op in ("ReduceSum", "ReduceMax") else ("float",)
        bounds = (0.9, 1.1) if op in ("ReduceProd", "ReduceLogSum") else (-3.0, 3.0)
        yield Row(
            f"{op} of rows",
            "T[N,C] x, int64[1] a",
            f"y = {op} (x, a)",
            LINE,
            types,
            constants={"a": [-1]},
            ranges={"x": bounds},
        )
        if op in ("ReduceSum", "ReduceMean", "ReduceMax"):
            yield Row(f"{op} of columns", "T[N,C] x, int64[1] a", f"y = {op} (x, a)", LINE, constants={"a": [0]})
            yield Row(f"{op} of planes", "T[N,c,H,W] x, int64[2] a", f"y = {op} (x, a)", IMAGE, constants={"a": [2, 3]})
            yield Row(f"{op} of all", "T[N,C] x", f"y = {op} <keepdims = 0> (x)", LINE)
    for op in ("ArgMax", "ArgMin"):
        yield Row(op, "T[N,C] x", f"y = {op} <axis = -1> (x)", LINE, ("float", "int32"))
    yield Row("ArgMax of channels", "T[N,c,H,W] x", "y = ArgMax <axis = 1> (x)", IMAGE)
    yield Row("CumSum", "T[N,C] x, int64 a", "y = CumSum (x, a)", LINE, ("float", "int64"), constants={"a": 1})
    yield Row("CumSum of columns", "T[N,C] x, int64 a", "y = CumSum (x, a)", LINE, constants={"a": 0})
    for title, k, sort in ("TopK of 5", "5", 1), ("TopK of 100", "100", 1), ("TopK of all", "C", 1):
        yield Row(title, "T[N,C] x, int64[1] k", f"y, i = TopK <sorted = {sort}> (x, k)",
                  {"N": (1, 16, 64), "C": (1000, 1024, 8192), "c": (1000, 1024, 8192)}, constants={"k": [k.lower()]})  # fmt: skip
    yield Row(
        "TopK of a vocabulary",
        "T[1,C] x, int64[1] k",
        "y, i = TopK (x, k)",
        {"C": (8000, 32000, 128000)},
        constants={"k": [50]},
    )


def _movement() -> Iterator[Row]:
    types = ("float", "float16", "int64", "uint8")
    yield Row("Transpose", "T[N,C] x", "y = Transpose (x)", LINE, types)
    yield Row("Transpose to channels last", "T[N,c,H,W] x", "y = Transpose <perm = [0, 2, 3, 1]> (x)", IMAGE, types)
    yield Row("Transpose to channels first", "T[N,H,W,c] x", "y = Transpose <perm = [0, 3, 1, 2]> (x)", IMAGE)
    yield Row(
        "Transpose of heads",
        "T[N,S,12,64] x",
        "y = Transpose <perm = [0, 2, 1, 3]> (x)",
        {"N": 1, "S": (16, 128, 1024)},
        types,
    )
    yield Row("Concat of channels", "T[N,c,H,W] a, T[N,c,H,W] b", "y = Concat <axis = 1> (a, b)", IMAGE, types)
    yield Row("Concat of columns", "T[N,C] a, T[N,C] b", "y = Concat <axis = 1> (a, b)", LINE)
    yield Row("Split", "T[N,C] x", "y, z = Split <axis = -1, num_outputs = 2> (x)", LINE)
    slices = {"s": [1, 1], "e": [100000, 100000], "a": [2, 3], "t": [2, 2]}
    yield Row(
        "Slice",
        "T[N,c,H,W] x, int64[2] s, int64[2] e, int64[2] a, int64[2] t",
        "y = Slice (x, s, e, a, t)",
        IMAGE,
        constants=slices,
    )
    pads = {"p": [0, 0, 3, 3, 0, 0, 3, 3]}
    for mode in ("constant", "reflect", "edge"):
        yield Row(f"Pad {mode}", "T[N,c,H,W] x, int64[8] p", f'y = Pad <mode = "{mode}"> (x, p)', IMAGE, constants=pads)
    yield Row("Expand", "T[N,1] x, int64[2] s", "y = Expand (x, s)", {"N": (1, 64, 1024)}, constants={"s": [1, 1024]})
    yield Row("Tile", "T[N,C] x, int64[2] r", "y = Tile (x, r)", LINE, constants={"r": [2, 2]})
    yield Row("DepthToSpace", "T[N,c,H,W] x", "y = DepthToSpace <blocksize = 2> (x)", IMAGE)
    yield Row("SpaceToDepth", "T[N,c,H,W] x", "y = SpaceToDepth <blocksize = 2> (x)", IMAGE)
    yield Row(
        "Gather of rows",
        "T[v,768] x, int64[N] i",
        "y = Gather (x, i)",
        {"v": 30000, "N": (1, 128, 4096)},
        REALS,
        weights="x",
        ranges={"i": (0, "v")},
    )
    yield Row(
        "Gather of columns",
        "T[N,C] x, int64[k] i",
        "y = Gather <axis = 1> (x, i)",
        {**LINE, "k": 512},
        ranges={"i": (0, 1000)},
    )
    yield Row(
        "GatherElements",
        "T[N,C] x, int64[N,C] i",
        "y = GatherElements <axis = 1> (x, i)",
        LINE,
        ranges={"i": (0, 1000)},
    )
    yield Row(
        "GatherND",
        "T[N,64,c] x, int64[K,2] i",
        "y = GatherND (x, i)",
        {"N": (1, 8, 64), "c": 64, "K": (16, 512, 8192)},
        ranges={"i": (0, "N")},
    )
    scatter = {"N": (16, 1000, 30000), "K": (4, 500, 10000), "c": 64}
    yield Row(
        "ScatterND",
        "T[N,c] x, int64[K,1] i, T[K,c] u",
        "y = ScatterND (x, i, u)",
        scatter,
        ranges={"i": (0, "N")},
        opset=16,
    )
    yield Row(
        "ScatterND add",
        "T[N,c] x, int64[K,1] i, T[K,c] u",
        'y = ScatterND <reduction = "add"> (x, i, u)',
        scatter,
        ranges={"i": (0, "N")},
    )
    yield Row("ScatterND add of numbers", "T[N] x, int64[K,1] i, T[K] u", 'y = ScatterND <reduction = "add"> (x, i, u)',
              {"N": (16, 1000, 300000), "K": (16, 5000, 300000)}, ranges={"i": (0, "N")})  # fmt: skip
    elements = "T[N,C] x, int64[N,C] i, T[N,C] u"
    for reduction in ("none", "add"):
        node = f'y = ScatterElements <axis = 1, reduction = "{reduction}"> (x, i, u)'
        yield Row(
            f"ScatterElements {reduction}",
            elements,
            node,
            LINE,
            ranges={"i": (0, 1000)} if reduction == "add" else {"i": (7, 8)},
        )
    yield Row(
        "OneHot",
        "int64[N] i, int64 d, T[2] v",
        "y = OneHot (i, d, v)",
        {"N": (1, 128, 4096)},
        constants={"d": 1000},
        ranges={"i": (0, 1000)},
        weights="v",
    )
    yield Row("Trilu", "T[N,N] x", "y = Trilu (x)", {"N": (32, 256, 2048)})
    yield Row(
        "ReverseSequence",
        "T[S,N,64] x, int64[N] l",
        "y = ReverseSequence (x, l)",
        {"S": (16, 64, 256), "N": (1, 16, 64)},
        ranges={"l": (1, 16)},
    )
    yield Row("EyeLike", "T[N,N] x", "y = EyeLike (x)", {"N": (32, 256, 2048)})
    yield Row("NonZero", "T[N,C] x", "y = NonZero (x)", LINE, ("float", "bool"), ranges={"x": (0, 2)})
    yield Row("Compress", "T[N,C] x, bool[N] c", "y = Compress <axis = 0> (x, c)", LINE)
    yield Row("Unique", "T[N] x", "y = Unique (x)", {"N": (100, 10000, 300000)}, ("int64",))
    yield Row(
        "Range",
        "int64 a, int64 b, int64 d",
        "y = Range (a, b, d)",
        {"m": (100, 10000, 1000000)},
        ranges={"a": (0, 1), "b": ("m", "m"), "d": (1, 2)},
    )
    yield Row("Col2Im", "T[N,k,L] x, int64[2] s, int64[2] b", "y = Col2Im <pads = [1, 1, 1, 1]> (x, s, b)",
              {"N": 1, "k": (144, 576, 576), "L": (196, 3136, 25600), "h": (14, 56, 160)}, constants={"s": ["h", "h"], "b": [3, 3]})  # fmt: skip


ROWS: tuple[Row, ...] = (*_elementwise(), *_by_rows(), *_movement(), *windows(), *products(), *microsoft())
