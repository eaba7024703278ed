"""Weights of many vectors whose number is odd: panels of two, the last of which has one, or a part of one."""

from __future__ import annotations

import machines
import numpy as np
import pytest
from building import model_of, reference

import occ
from occ.compiler.frontend.text import parse
from occ.compiler.ir.layout import panel_width
from occ.compiler.passes.base import Context
from occ.compiler.passes.layout.layout_weights import LayoutWeights
from occ.compiler.targets.registry import get_target

TEXT = """
g (float[n, 24] x, uint8[n, 24] q, float[1, 24, 3, h] p) => (float[n, 1033] a, float[n, 1040] b, int32[n, 1040] c, float[1, 1040, 3, h] d) {
    a = MatMul(x, wa)
    b = Gemm(x, wb, bias)
    c = MatMulInteger(q, wc)
    d = Conv(p, wd)
}
"""


@pytest.mark.parametrize(
    ("extent", "lanes", "width"),
    [
        (50257, 8, 16),
        (6625, 16, 32),
        (1033, 16, 32),
        (1000, 16, 48),
        (80, 16, 16),
        (1024, 16, 32),
        (7, 16, 0),
        (200, 16, 16),
        (200, 8, 16),
        (40, 8, 40),
        (34, 8, 40),
        (56, 8, 16),
        (24, 8, 24),
        (8, 8, 8),
    ],
)
def test_panels_have_two_vectors_where_one_more_is_little(extent, lanes, width):
    assert panel_width(extent, lanes, 8) == width


@pytest.mark.toolchain
def test_products_with_odd_panels():
    rng = np.random.default_rng(0)
    weights = {
        "wa": rng.standard_normal((24, 1033)).astype(np.float32), "wb": rng.standard_normal((24, 1040)).astype(np.float32),
        "bias": rng.standard_normal(1040).astype(np.float32), "wc": rng.integers(-128, 128, (24, 1040)).astype(np.int8),
        "wd": rng.standard_normal((1040, 24, 1, 1)).astype(np.float32),
    }  # fmt: skip
    model = model_of(TEXT, weights)
    session = occ.compile(model, "cpu")
    for n in (1, 5, 40):
        given = {
            "x": rng.standard_normal((n, 24)).astype(np.float32), "q": rng.integers(0, 256, (n, 24)).astype(np.uint8),
            "p": rng.standard_normal((1, 24, 3, n)).astype(np.float32),
        }  # fmt: skip
        for got, want in zip(session.run(given).values(), reference(model, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("machine", "type_", "columns", "width"),
    [
        ("x86-64-v3", "f32", 1536, 24),
        ("x86-64-v3", "f32", 512, 16),  # two of 66 vectors would be padding
        ("x86-64-v3", "f32", 520, 24),  # one of 66
        ("x86-64-v3", "f32", 40, 40),
        ("x86-64-v2", "f32", 1536, 8),
        ("x86-64-v4", "f32", 1536, 32),
        ("x86-64-v3", "f64", 512, 8),
        ("x86-64-v4", "f64", 512, 16),
    ],
)
def test_products_have_panels_of_three_vectors_on_avx2_and_doubles_their_own(machine, type_, columns, width):
    ones = ", ".join(["1.0"] * columns)
    m = parse(f"""
        module @m {{stage="fused"}} {{
          weight @w : {type_}[1,{columns}] = dense<{ones}>
          func @main(%x: {type_}[2,1]) -> {type_}[2,{columns}] as "y" {{
            %y = MatMul(%x, @w) : {type_}[2,{columns}]
            return %y
          }}
        }}
    """)
    LayoutWeights(threes=True).run(m, Context(get_target("cpu"), machines.named(machine)))
    op, *_ = m.walk()
    assert op.operands[1].tensor.layout.tiles == ((1, width),)  # pyright: ignore[reportOptionalMemberAccess]
