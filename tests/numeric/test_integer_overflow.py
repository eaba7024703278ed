"""Signed integers that overflow on the way to a comparison, an extreme or a wider type; the oracle is onnx.reference.

Halide takes it that numbers of 32 bits and more do not overflow. It made `x < 6` of `x - 1 < 5`, `0 < y` of `x < x + y`, and
`x` of `x * 2 / 2`. Each result is the element that a rewrite of that kind changes.
"""

from __future__ import annotations

import numpy as np
import pytest
from building import TARGETS, model_of, reference

import occ

TYPES = {"int32": np.int32, "int64": np.int64}
# What overflows, with the constants `one`, `five` and `big`, and what looks at the result.
MADE = {
    "less": "Sub({x}, one)", "more": "Add({x}, one)", "sum": "Add({x}, y)", "difference": "Sub({x}, y)",
    "twice": "Mul({x}, two)", "product": "Mul({x}, y)", "negative": "Neg({x})", "size": "Abs({x})",
    "from": "Sub(five, {x})", "over": "Div({x}, minus)",
}  # fmt: skip
LOOKED_AT = (
    "Less({}, five)", "LessOrEqual(five, {})", "Greater({}, {x})", "Equal({}, {x})", "Max({}, five)", "Min({}, {x})",
    "Min({}, y)", "Clip({}, minus, five)", "Div({}, two)", "Mod({}, five)", "Cast<to=1>({})", "Cast<to=6>({})",
    "Cast<to=7>({})", "Cast<to=13>({})", "Cast<to=2>({})", "Sub({}, {x})", "Sign({})", "Abs({})", "Greater({}, zero)",
)  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TYPES)
def test_what_overflows_wraps_before_it_is_looked_at(kind: str, target: str) -> None:
    dtype = np.dtype(TYPES[kind])
    lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    some = [lowest, lowest + 1, lowest // 2, -6, -5, -1, 0, 1, 4, 5, 6, highest // 2 + 1, highest - 1, highest]
    x, y = (a.ravel()[:67] for a in np.meshgrid(np.array(some, dtype), np.array(some, dtype)))
    lines, given, results = [], [], []
    for name, made in MADE.items():
        for k, look in enumerate(LOOKED_AT):  # each of an input of its own, so that nothing is shared and all is fused
            x_k, at = f"x_{name}_{k}", f"{name}_{k}"
            lines += [f"{at} = {made.format(x=x_k)}", f"r_{at} = {look.format(at, x=x_k)}"]
            given.append(x_k)
            results.append(f"r_{at}")
    inputs = ", ".join(f"{kind}[67] {name}" for name in (*given, "y"))
    text = f"g ({inputs}) => ({', '.join(results)}) {{ {'  '.join(lines)} }}"
    constants = {"zero": 0, "one": 1, "two": 2, "five": 5, "minus": -1}
    model = model_of(text, {k: np.array(v, dtype) for k, v in constants.items()})
    feeds = {**dict.fromkeys(given, x), "y": y}
    with np.errstate(all="ignore"):
        expected = reference(model, feeds)
    for (name, got), want in zip(occ.compile(model, target).run(feeds).items(), expected, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exponents", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("kind", TYPES)
def test_powers_wrap(kind: str, exponents: str, target: str) -> None:
    """On cpu they went through f64, on cpu-jit only seven bits of the exponent counted; the oracle is Python's own power."""
    dtype, whole = np.dtype(TYPES[kind]), np.dtype(exponents)
    ends, exponent_ends = np.iinfo(dtype), np.iinfo(whole)
    x = [0, 1, -1, 2, -2, 3, -3, 7, 10, 46341, ends.min, ends.max]
    e = [
        0,
        1,
        2,
        3,
        5,
        31,
        33,
        63,
        64,
        100,
        127,
        *(n for n in (128, 130, 2**32 + 1, 2**63 + 1) if n <= exponent_ends.max),
    ]
    base, exponent = (g.ravel() for g in np.meshgrid(np.array(x, dtype), np.array([*e, exponent_ends.max], whole)))
    model = model_of(f"g ({kind}[n] x, {exponents}[n] e) => ({kind}[n] y) {{ y = Pow(x, e) }}")
    got = occ.compile(model, target).run({"x": base, "e": exponent})["y"]
    bits = 8 * dtype.itemsize
    exact = [pow(b, n, 1 << bits) for b, n in zip(base.tolist(), exponent.tolist(), strict=True)]
    np.testing.assert_array_equal(got, np.array(exact, np.uint64).astype(dtype))


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_negative_powers_of_integers_are_those_of_one(target: str) -> None:
    x, e = np.array([1, -1, -1, 2, -5, 0], np.int32), np.array([-3, -3, -2, -1, -1, -1], np.int64)
    model = model_of("g (int32[6] x, int64[6] e) => (int32[6] y) { y = Pow(x, e) }")
    assert occ.compile(model, target).run({"x": x, "e": e})["y"].tolist() == [1, -1, 1, 0, 0, 0]


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("factor", [0, 3])
def test_product_with_a_constant_of_one_element(factor: int, target: str) -> None:
    """With 0, nothing was left of the sum but the addend, whose indices were then rewritten twice: an internal error."""
    model = model_of(
        "g (int64[4,1] x, int64[1,4] c) => (int64[1,4] y) { y = Gemm<transB=1>(w, x, c) }", {"w": np.array([[factor]])}
    )
    feed = {"x": np.arange(4).reshape(4, 1), "c": np.array([[5, -6, 7, 8]])}
    np.testing.assert_array_equal(occ.compile(model, target).run(feed)["y"], reference(model, feed)[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kept", [2**32 - 1, 2**32 - 2])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32"])
def test_casts_of_numbers_beyond_the_type_wrap(target: str, kept: int, dtype: str) -> None:
    """Halide bounds a cast of 0 to 2**32 - 1 by 0 and -1: nothing of Clip was left in the last vector."""
    text = f"g ({dtype}[n] x) => (int32[n] y) {{ a = BitwiseAnd(x, m) b = Cast <to = 6> (a) y = Clip(b, low, high) }}"
    model = model_of(text, {"m": np.array(kept, dtype), "low": np.int32(0), "high": np.int32(10)})
    x = np.concatenate([np.arange(-20, 20), [2**31, 2**31 - 1, 2**31 + 5]]).astype(dtype)
    (y,) = occ.compile(model, target=target)(x)
    np.testing.assert_array_equal(y, np.clip((x & np.array(kept, dtype)).astype(np.int32), 0, 10))
