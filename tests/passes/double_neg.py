"""The rule of apply_rewrites.occ."""

from occ import rewrite


@rewrite
def double_neg(p, x):
    """`Neg(Neg(x))` --> `x`"""
    return p.Neg(p.Neg(x))


@double_neg.into
def _(b, x):
    return x
