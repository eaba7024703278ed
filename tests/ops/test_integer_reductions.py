"""Every reduction in every integer type that ONNX allows it, over some, all and no axes, and over an extent of 0.

The oracle is onnx.reference, and f64 cut to an integer for logarithms, which it has of floats alone: operator set 28 took the
integers away, and they were refused in models of earlier ones too.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from building import TARGETS, model_of, reference

import occ

OPERATORS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
# Of what nothing is in, the specification has the neutral element; onnx.reference does not compute these.
OF_NOTHING = {"ReduceMax": "min", "ReduceMin": "max"}
LOGARITHMS = {"ReduceLogSum": lambda x: x, "ReduceLogSumExp": np.exp}
UNDEFINED = ("ReduceMean", "ReduceLogSum", "ReduceLogSumExp")  # of nothing: NaN or -inf, which no integer is


def takes(operator: str, kind: str) -> bool:
    schema = onnx.defs.get_schema(operator, 20)
    return f"tensor({kind})" in next(c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == "T")


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TYPES)
def test_reductions_of_integers(kind: str, target: str) -> None:
    """ReduceMax and ReduceMin of 8 bits over no axes were an internal error on cpu."""
    operators = [o for o in OPERATORS if takes(o, kind)]
    x = np.array([[1, 2, 3], [4, 5, 6]] if kind.startswith("u") else [[-5, 3, 7], [9, -1, 4]], kind)
    constants = {"one": np.array([1]), "zero": np.array([0]), "both": np.array([0, 1]), "no": np.zeros(0, np.int64)}
    axes = {"one": (1,), "zero": (0,), "both": (0, 1), "": None, "no": ()}
    lines, expected = {}, {}
    for o in operators:
        for k, over in axes.items():
            if not (o == "ReduceLogSum" and k == "no" and x.min() < 0):  # no logarithms of what is below 0
                node = f"{o}<noop_with_empty_axes={int(k == 'no')}>(x{k and ', '}{k})"
                lines[f"{o}_{k}"] = f"{o}_{k} = {node}"
                if o in LOGARITHMS:
                    total = np.sum(LOGARITHMS[o](x.astype(np.float64)), over, keepdims=True)
                    expected[f"{o}_{k}"] = np.log(total)
                else:
                    one = model_of(f"g ({kind}[n, 3] x) => ({kind}[a, b] y) {{ y = {node} }}", constants)
                    (expected[f"{o}_{k}"],) = reference(one, {"x": x})
    text = f"g ({kind}[n, 3] x) => ({', '.join(lines)}) {{ {'  '.join(lines.values())} }}"
    for name, got in occ.compile(model_of(text, constants), target).run({"x": x}).items():
        np.testing.assert_array_equal(got, np.asarray(expected[name]).astype(kind), err_msg=name, strict=True)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["int32", "uint32", "int64", "uint64"])
def test_large_integers_keep_their_digits(kind: str, target: str) -> None:
    """Roots and logarithms went through f32, which cannot represent 16,777,217."""
    text = f"""g ({kind}[n, 2] x, {kind}[n, 2] z) => (root, log) {{
        root = ReduceL2(x, one)  log = ReduceLogSumExp(z, one)
    }}"""
    roots = [[46339, 0], [30000, 30000], [46340, 1]] if kind.endswith("32") else [[94906265, 1], [16777217, 0], [9, 40]]
    feeds = {"x": np.array(roots, kind), "z": np.array([[16777217, 3], [2**30 + 1, 2**30 - 60], [9, 2]], kind)}
    model = model_of(text, {"one": np.array([1])})
    got = occ.compile(model, target).run(feeds)
    wide = {k: v.astype(np.longdouble) for k, v in feeds.items()}
    peak = wide["z"].max(1, keepdims=True)
    wants = {"root": np.sqrt((wide["x"] ** 2).sum(1, keepdims=True))}
    wants["log"] = np.log(np.exp(wide["z"] - peak).sum(1, keepdims=True)) + peak
    for name, want in wants.items():
        np.testing.assert_array_equal(got[name], want.astype(kind), err_msg=name)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TYPES)
def test_erf_of_integers(kind: str, target: str) -> None:
    """Operator set 9 allows it, later ones do not: an operand may have any type of the sets that are read."""
    x = np.array([0, 1, 2, 3, 4, 6, 100], kind)
    model = model_of(f"g ({kind}[n] x) => ({kind}[n] y) {{ y = Erf(x) }}", opset=9)
    got = occ.compile(model, target).run({"x": x})["y"]
    np.testing.assert_array_equal(got, reference(model, {"x": x})[0])
    assert got.tolist() == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TYPES)
def test_reductions_of_no_integers(kind: str, target: str) -> None:
    operators = [o for o in OPERATORS if takes(o, kind) and o not in UNDEFINED]
    lines = [f"{o} = {o}<keepdims=0>(x, zero)" for o in operators]
    model = model_of(
        f"g ({kind}[n, 3] x) => ({', '.join(operators)}) {{ {'  '.join(lines)} }}", {"zero": np.array([0])}
    )
    for name, got in occ.compile(model, target).run({"x": np.zeros((0, 3), kind)}).items():
        limits = np.iinfo(kind)
        want = getattr(limits, OF_NOTHING[name]) if name in OF_NOTHING else int(name == "ReduceProd")
        assert got.tolist() == [want] * 3, name
