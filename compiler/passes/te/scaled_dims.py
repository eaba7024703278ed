"""Replaces products of a dim and a number, such as `12544*N` rows of images, by one dim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd

from occ.compiler.ir.build_te import occurring
from occ.compiler.ir.dim import Dim, Sym, Symbol, build, lower, monomial, symbol, symbols, terms_of
from occ.compiler.ir.te.function import TeFunc, reduce_axes
from occ.compiler.ir.te.schedule import AtMost
from occ.compiler.passes.te.bind_dims import with_dims
from occ.compiler.passes.te.loop_facts import loop_facts, multiple


def scaled(f: TeFunc, smallest: int) -> tuple[TeFunc, dict[str, int]]:
    """The function with dims instead of products, and each dim's factor by name.

    `%x: f32[12544*N, 32]` in tiles of 8 rows --> `%x: f32[8*N, 32]`, and a call passes `1568*N`
    What a call passes is at most the extent of an axis, since kernels count dims in 32 bits. Numbers that are data may
    be larger: `y[0] = dim(10000000*N)` keeps N.

    Args:
        f: scheduled.
        smallest: numbers up to this are left alone.
    """
    if not f.dims:
        return f, {}
    dims = list(_all_dims(f))
    extents = [*_extents(f)]
    parts: dict[str, tuple[int, int]] = {}
    for name in f.dims:
        if (times := _times(name, dims)) > smallest:
            facts = loop_facts(f)
            axes = (a for s in f.stages for a in s.axes if name in symbols(a.extent))
            part = gcd(times, multiple([facts.axes[a.name] for a in axes]))
            if any(_is_at_most(times // part, name, d) for d in extents):
                parts[name] = times, part
    if not parts:
        return f, {}
    return with_dims(f, lambda d: _put(d, parts)), {n: t // part for n, (t, part) in parts.items()}


def _all_dims(f: TeFunc) -> Iterator[Dim]:
    yield from occurring(f.params, f.stages, f.results, f.checks)
    for a in (a for d in f.schedule for a in d.args):
        if isinstance(a, AtMost):
            yield from (a.left, a.right)
        elif isinstance(a, Sym):
            yield a


def _extents(f: TeFunc) -> Iterator[Dim]:
    for p in (*f.params, *f.results):
        yield from p.type.dims
    for s in f.stages:
        yield from (a.extent for a in (*s.axes, *reduce_axes(*s.exprs[:1])))


def _is_at_most(times: int, name: str, extent: Dim) -> bool:
    """Whether that many times a dim are certainly at most an extent."""
    known = symbols(extent).get(name)
    return known is not None and lower(extent - times * monomial((known, 1))) >= 0


def _times(name: str, dims: list[Dim]) -> int:
    """The common factor of a dim: 1 if it occurs in a product or function, 0 if nowhere."""
    times = 0
    for d in (d for d in dims if name in symbols(d)):
        for mono, coeff in terms_of(d):
            if mono and name in symbols(build({mono: 1})):
                ((atom, power), *more) = mono
                if more or power != 1 or not isinstance(atom, Symbol):
                    return 1
                times = gcd(times, coeff)
    return times


def _put(d: Dim, parts: Mapping[str, tuple[int, int]]) -> Dim:
    total: Dim = 0
    for mono, coeff in terms_of(d):
        atom = mono[0][0] if len(mono) == 1 else None
        if isinstance(atom, Symbol) and atom.name in parts:
            times, part = parts[atom.name]
            total = total + coeff // times * part * symbol(
                atom.name, atom.lo * (times // part), None, atom.divisible_by
            )
        else:
            total = total + build({mono: coeff})
    return total
