"""Concats whose operands are computed in the memory of the result: their results, and how much is still copied."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of, on_threads

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.runtime.open import open_artifact

_CONVS = """
    a0 = Conv<pads = [1, 1, 1, 1]>(x, w3)
    a = Relu(a0)
    b = Conv(x, w1)
"""
# What is joined, and how many kernels of the plan for `cpu` copy operands.
GRAPHS: dict[str, tuple[str, int]] = {
    "convolutions": (_CONVS + "y = Concat<axis = 1>(a, b)", 1),  # the result is an output, in another order
    "before elementwise ops": (_CONVS + "c = Concat<axis = 1>(a, b)  d = Sigmoid(c)  y = Mul(c, d)", 0),
    "what others read": (_CONVS + "c = Concat<axis = 1>(a, b)  d = Conv(a, w7)  e = Add(d, b)  f = Concat<axis = 1>(c, e) y = Exp(f)", 0),
    "an output": (_CONVS + "z = Identity(b)  c = Concat<axis = 1>(a, b)  y = Relu(c)", 1),
    "one value twice": (_CONVS + "c = Concat<axis = 1>(a, b, b)  y = Relu(c)", 1),
    "an input": (_CONVS + "c = Concat<axis = 1>(a, x)  y = Relu(c)", 1),
    "a constant": (_CONVS + "c = Concat<axis = 1>(a, b, k)  y = Relu(c)", 1),
    "mostly inputs": (_CONVS + "c = Concat<axis = 1>(x, b, x, x)  y = Relu(c)", 1),
    "joins": (_CONVS + "c = Concat<axis = 1>(a, b)  d = Conv(c, w4)  e = Concat<axis = 1>(d, c)  y = Relu(e)", 0),
    "joins on another axis": (_CONVS + "c = Concat<axis = 1>(a, b)  d = Conv(x, w5)  e = Concat<axis = 2>(c, d)  y = Relu(e)", 0),
    "what begins alike": (_CONVS + "c = Concat<axis = 1>(a, b)  d = Conv(c, w4)  e = Concat<axis = 1>(a, b, d)  y = Relu(e)", 0),
    "the same twice": (_CONVS + "c = Concat<axis = 1>(a, b)  d = Concat<axis = 1>(b, a)  y = Add(c, d)", 1),
    "nothing": (_CONVS + "d = Slice(b, zero, zero, one)  e = Abs(d)  c = Concat<axis = 1>(a, e, b)  y = Relu(c)", 0),
    "short rows": (_CONVS + "d = Conv(x, w2)  c = Concat<axis = 1>(a, d)  y = Neg(c)", 1),
    "rows": (_CONVS + "c = Concat<axis = 2>(a, b)  y = Relu(c)", 0),
    "batches": (_CONVS + "c = Concat<axis = 0>(a, b)  y = Relu(c)", 0),
}  # fmt: skip
_SHAPES = {
    "w1": (32, 16, 1, 1), "w2": (3, 16, 1, 1), "w3": (32, 16, 3, 3), "w4": (24, 64, 1, 1), "w5": (64, 16, 1, 1),
    "w7": (32, 32, 1, 1), "k": (1, 8, 6, 6),
}  # fmt: skip
_NAME = re.compile(r"\b(?:[a-fkyz]|a0|w\d)\b")


def graphs(names: Iterable[str], dims: str) -> onnx.ModelProto:
    """A model of some graphs side by side, each with weights of its own."""
    rng = np.random.default_rng(3)
    body, outputs, weights = "", [], {"zero": np.int64([0]), "one": np.int64([1])}
    for k, name in enumerate(names):
        text = _NAME.sub(lambda m, k=k: f"g{k}{m[0]}", GRAPHS[name][0])
        body += text + "\n"
        weights |= {f"g{k}{n}": (rng.standard_normal(s) * 0.1).astype(np.float32) for n, s in _SHAPES.items()}
        outputs += [
            f"float[{', '.join(f'g{k}{n}d{axis}' for axis in range(4))}] g{k}{n}" for n in "yz" if f"g{k}{n} =" in text
        ]
    used = {n: w for n, w in weights.items() if re.search(rf"\b{n}\b", body)}
    return model_of(f"g (float[{dims}] x) => ({', '.join(outputs)}) {{ {body} }}", used)


def copies(model: onnx.ModelProto) -> int:
    """Kernels that only copy, but for what brings the input into the order of convolutions."""
    m = Compilation(model, Settings("cpu", verify=True)).advance("lowered")
    found = 0
    for op in m.main.body:
        if op.name == "kernel" and op.attrs["te"].startswith(("concat", "pack")):
            made = op.inputs[-1].tensor
            found += op.inputs[0] not in m.main.args or bool(made.layout.within) or op.attrs["te"].startswith("concat")
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("name", GRAPHS)
def test_operands_are_copied_only_where_they_cannot_be_computed_in_place(name: str) -> None:
    assert copies(graphs([name], "1, 16, 6, 6")) == GRAPHS[name][1]


def sessions(model: onnx.ModelProto, target: str) -> list[Any]:
    return on_threads(Compilation(model, Settings(target, verify=True)).artifact())


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("dims", ["1, 16, 6, 6", "n, 16, h, 6"])
def test_joins_agree_with_onnxruntime(dims: str, target: str) -> None:
    fixed = not dims.startswith("n")
    names = [n for n in GRAPHS if fixed or n != "a constant"]
    model = graphs(names, dims)
    one, two = sessions(model, target)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, h in ((1, 6),) if fixed else ((1, 6), (3, 5), (2, 1)):
        x = np.random.default_rng(n).standard_normal((n, 16, h, 6)).astype(np.float32)
        for _ in range(2):  # the second run finds what the first one left
            got, other = one.run({"x": x}), two.run({"x": x})
        for (name, a), b, want in zip(got.items(), other.values(), peer.run(None, {"x": x}), strict=True):
            said = f"{name} of {dict(enumerate(names))}"
            np.testing.assert_array_equal(a, b, said)
            np.testing.assert_allclose(a, want, rtol=1e-4, atol=1e-5, err_msg=said)


def test_sizes_that_the_data_decide_are_joined_by_copies() -> None:
    """The memory of the result cannot be had before its size is known."""
    text = """g (float[4, 16] x) => (float[k] y) {
        a = Exp(x)
        z = NonZero(x)
        i = Cast<to = 1>(z)
        f = Reshape(a, flat)
        e = Neg(f)
        r = ReduceSum<keepdims = 0>(i, zero)
        s = Neg(r)
        c = Concat<axis = 0>(e, s)
        y = Relu(c)
    }"""
    model = model_of(text, {"flat": np.int64([-1]), "zero": np.int64([0])})
    x = (np.random.default_rng(0).standard_normal((4, 16)) > 0).astype(np.float32)
    got = open_artifact(Compilation(model, Settings("cpu-jit", verify=True)).artifact(), 2).run({"x": x})["y"]
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5)


# What is joined to a kernel's result; `b` is what no kernel could write into the memory of the join.
PRODUCERS = {
    "a branch": "b = If(c) <then_branch = yes () => (float[3] u) { u = Neg(z) }, else_branch = no () => (float[3] v) { v = Abs(z) }>",
    "a loop": "b, scan = Loop(n, c, z) <body = l (int64 i, bool k, float[3] s) => (bool more, float[3] s2, float[3] s3)"
    " { more = Identity(k)  s2 = Neg(s)  s3 = Abs(s) }>",
    "a view": "w = Reshape(x, square)  r = ReduceMean<keepdims = 1>(w, one)  b = Squeeze(r, one)",
    "a deferred op": "b = Slice(z, zero, m)",
    "strings": "s = Cast<to = 8>(z)  b = Cast<to = 1>(s)",
    "an input": "b = Identity(z)",
    "a constant": "b = Identity(k3)",
    "what the data decide": "o = NonZero(z)  f = Cast<to = 1>(o)  b = Reshape(f, flat)",
    "two joins": "b = Neg(z)  d = Concat<axis = 0>(a, b)  h = Sigmoid(d)",
    "an output": "b = Neg(z)  h = Identity(b)",
}


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("name", PRODUCERS)
def test_joins_of_what_no_kernel_computes(name: str, target: str) -> None:
    outputs = "float[p] y" + (", float[q] h" if "  h =" in PRODUCERS[name] else "")
    text = f"""g (float[9] x, float[3] z, bool c, int64 n, int64[1] m) => ({outputs}) {{
        a = Sigmoid(x)
        {PRODUCERS[name]}
        y = Concat<axis = 0>(a, b)
    }}"""
    constants = {"square": [3, 3], "one": [1], "zero": [0], "flat": [-1]}
    weights = {k: np.int64(v) for k, v in constants.items()} | {"k3": np.float32([1, 2, 3])}
    model = model_of(text, weights)
    rng = np.random.default_rng(1)
    feed = {"x": rng.standard_normal(9, np.float32), "z": np.float32([1, 0, 2]), "c": np.array(True)}
    feed |= {"n": np.array(3), "m": np.array([2])}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    if target == "cpu":  # what Halide makes of the kernels is not at stake
        for level in "23":
            Compilation(model, Settings(target, verify=True, options={"optimize": level})).advance("lowered")
        return
    for y, want in zip(occ.compile(model, target).run(feed).values(), wanted, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5)
