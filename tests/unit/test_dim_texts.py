"""Sizes as C++ in generators of Halide."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest

from occ.compiler.codegen_halide.expressions import Printer
from occ.compiler.codegen_halide.literals import dim_text
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.te.expr import Binary, Index, Size

A, B, C = (dim.symbol(n) for n in "abc")
SIZES: list[Dim] = [
    A // B, A // (B * C), B * C * (A // (B * C)), A // (2 * B), A // (B * B), A // (B + C), (A * B) // C, (A + B) // (C * B),
    A - B * (A // B), A // (C * (A // B + 1)), dim.maximum(A - B, C) // (B * C), dim.minimum(A, B // (C * A)),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_text_of_a_size_is_that_size(size: Dim) -> None:
    """`n // (a*b)` came as `n / a*b`: kernels that had such an extent wrote beyond their result."""
    text = dim_text(size).replace("cast<int64_t>", "").replace("cast<int>", "").replace("/", "//")
    meaning = {"max": max, "min": min, "Expr": int, "int64_t": int}
    for a, b, c in itertools.product((1, 7, 231), (1, 3, 7), (2, 33)):
        of = {"a": a, "b": b, "c": c}
        assert eval(text, {**of, **meaning}) == dim.evaluate(size, of)


@pytest.mark.parametrize("size", [*SIZES, (A // 2) * (B // 3), A * B, 3 * (A // 2), 2 * A * B], ids=str)
@pytest.mark.parametrize("op", ["floordiv", "mod"])
def test_text_of_a_position_by_a_size(op: Literal["floordiv", "mod"], size: Dim) -> None:
    """`i % ((a//2)*(b//3))` came as `i % (a/2)*(b/3)`."""
    position = Binary(op, Index("i"), Size(size), I64)
    text = Printer({}, {"i": dim.symbol("i")}, {}).index(position)
    text = text.replace("cast<int64_t>", "").replace("cast<int>", "").replace("/", "//")
    meaning = {"max": max, "min": min, "Expr": int, "int64_t": int}
    for a, b, c in itertools.product((6, 7, 231), (3, 4, 7), (2, 33)):
        of = {"a": a, "b": b, "c": c}
        if by := dim.evaluate(size, of):
            wanted = 1000 % by if op == "mod" else 1000 // by
            assert eval(text, {**of, **meaning, "i": 1000}) == wanted
