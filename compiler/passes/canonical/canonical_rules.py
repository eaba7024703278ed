"""Canonicalization patterns, in the rule language of users.

`occ check-rules` checks them on random operands like any others, and so do the tests. Rules that need more than a
pattern can express (tags of operators, values of shapes) are functions in canonicalize.py.
"""

# pyright: reportUnusedFunction=false
from __future__ import annotations

from occ.compiler.passes.rules.declare import rewrite
from occ.compiler.passes.rules.rule import Rewrite


@rewrite
def identity(p, x):
    """`Identity(x)` --> `x`"""
    return p.Identity(x)


@identity.into
def _(b, x):
    return x


@rewrite
def cast_to_same(p, x):
    """`Cast(x: f32) {to=f32}` --> `x`"""
    return p.Cast(x, to=p.bind("to"))


@cast_to_same.when
def _(m):
    return m.x.tensor.dtype == m.to or m.reject("the types differ")


@cast_to_same.into
def _(b, x):
    return x


@rewrite
def neutral_factor(p, x):
    """`x * 1`, `1 * x`, `x / 1`, `x ** 1` --> `x`; exact for every value, NaN included"""
    return x * 1 | x / 1 | x**1


@neutral_factor.into
def _(b, x):
    return x


@rewrite
def neutral_subtrahend(p, x):
    """`x - 0` --> `x`; exact for every value, -0 included, which is why there is no such rule for `x + 0`"""
    return x - 0


@neutral_subtrahend.into
def _(b, x):
    return x


@rewrite
def sum_of_one(p, x):
    """`Sum(x)` --> `x`"""
    return p.op(("Sum", "Mean", "Max", "Min"), x)


@sum_of_one.into
def _(b, x):
    return x


@rewrite
def sum_of_two(p, x, y):
    """`Sum(x, y)` --> `Add(x, y)`"""
    return p.Sum(x, y)


@sum_of_two.into
def _(b, x, y):
    return x + y


@rewrite
def transpose_of_transpose(p, x):
    """`Transpose(Transpose(x))` --> one Transpose of the composed permutation"""
    return p.Transpose(p.shared(p.Transpose(x, perm=p.bind("inner"))), perm=p.bind("outer"))


@transpose_of_transpose.into
def _(b, x, inner, outer):
    backwards = tuple(range(x.tensor.rank))[::-1]
    first, then = inner or backwards, outer or backwards
    return b.Transpose(x, perm=tuple(first[k] for k in then))


ALL: tuple[Rewrite, ...] = (
    identity, cast_to_same, neutral_factor, neutral_subtrahend, sum_of_one, sum_of_two, transpose_of_transpose,
)  # fmt: skip
