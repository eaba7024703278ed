"""RotaryEmbedding: pairs of channels rotated by the angle of their position."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from typing import Any

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import minimum as least
from occ.compiler.ir.dim import product
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.attention import quotient
from occ.compiler.ir.shape import equal_dims, show_shape
from occ.compiler.ir.te.expr import Expr, cast, equal, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


@op("RotaryEmbedding")
class RotaryEmbedding:
    """Pairs of the head rotated by an angle that depends on the position (ONNX RotaryEmbedding 23)."""

    static = ("position_ids",)

    def body(t, x, cos_cache, sin_cache, position_ids=None, *, a):
        return rotated(t, x, cos_cache, sin_cache, position_ids, a)


def rotated(t: Builder, x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None, a: Any) -> Tensor:
    """RotaryEmbedding of `[N, H, L, D]` or `[N, L, H*D]`.

    Raises:
        Invalid: the number of heads is missing, or the caches have the wrong shape.
    """
    flat = x.rank == 3
    if position_ids is not None and position_ids.rank != 2 and product(position_ids.shape) != 1:
        raise Invalid(f"positions of `RotaryEmbedding` are `[batch, length]`, not {show_shape(position_ids.shape)}")
    if flat and not a.num_heads:
        raise Invalid("`RotaryEmbedding` of rank 3 needs `num_heads`")
    head = quotient("RotaryEmbedding", x.shape[2], a.num_heads) if flat else x.shape[3]
    dim = a.rotary_embedding_dim or head
    equal_dims(least(dim, head), dim, "`RotaryEmbedding`: the rotated elements and the size of a head")
    half = quotient("RotaryEmbedding", dim, 2)
    for cache in (cos, sin):
        equal_dims(
            cache.shape[-1], half, "`RotaryEmbedding`: half of the rotated elements and the angles of a position"
        )
    places = [cos.shape[:-1], sin.shape[:-1]] if position_ids is None else [position_ids.shape]
    for n, m in (
        pair for given in places for pair in zip(reversed(given), (x.shape[1 if flat else 2], x.shape[0]), strict=False)
    ):
        if n != 1:
            equal_dims(n, m, "`RotaryEmbedding`: the positions and the length of the data")
    if position_ids is not None:
        t.check(
            position_ids.shape,
            lambda *i: (cast(I64, position_ids[i]) >= 0) & (cast(I64, position_ids[i]) < wrap(cos.shape[0])),
            "`RotaryEmbedding` has a position outside of the cache",
        )

    def element(*i: Expr) -> Expr:
        n, length = i[0], i[1] if flat else i[2]
        d = i[2] % wrap(head) if flat else i[3]

        def angle(cache: Tensor, k: Expr) -> Expr:
            if position_ids is None:
                return cache.at((n, length, k))
            return cache[cast(I64, position_ids.at((n, length))), k]

        def at(k: Expr) -> Expr:
            return x[n, length, i[2] // wrap(head) * wrap(head) + k] if flat else x[n, i[1], length, k]

        if a.interleaved:
            pair, second = d // 2, equal(d % 2, 1)
            one, two = at(pair * 2), at(pair * 2 + 1)
        else:
            second = d >= wrap(half)
            pair = where(second, d - wrap(half), d)
            one, two = at(pair), at(pair + wrap(half))
        c, s = angle(cos, pair), angle(sin, pair)
        turned = where(second, s * one + c * two, c * one - s * two)
        return turned if dim == head else where(d < wrap(dim), turned, x[i])

    return t.map(x.shape, element, name="rotated")


ALL = (RotaryEmbedding,)
