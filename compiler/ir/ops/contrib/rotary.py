"""RotaryEmbedding of com.microsoft."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.spec import FormalSignature, op
from occ.compiler.ir.ops.attention import quotient
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_dims
from occ.compiler.ir.te.expr import cast, equal, where, wrap


@op("positions", own_attributes="")
class Positions:
    """Token positions `[N, L]`: `start[n] + l`.

    The start is one number, or one per row.
    """

    static = ("sizes",)
    operands = ("start", "sizes")

    def body(t, start, sizes, *, a):
        one = start.type.size == 1
        if not one:
            equal_dims(start.shape[0], sizes.value[0], "the first positions and the rows")
        return t.map(
            sizes.value, lambda n, i: cast(I64, start[(0,) * start.rank] if one else start[n]) + i, name="positions"
        )


@op(
    f"{DOMAIN}.RotaryEmbedding",
    signature=FormalSignature.of(
        "input position_ids cos_cache sin_cache", "output", interleaved=0, num_heads=0, rotary_embedding_dim=0,
        scale=1.0,
        is_packed_batching=0,
    ),
)  # fmt: skip
class RotaryEmbedding:
    """RotaryEmbedding of ai.onnx with the operands reordered; a single position is the first element's."""

    def composite(b, x, positions, cos, sin, *, a):
        flat = x.tensor.rank == 3
        n, length = x.tensor.dims[0], x.tensor.dims[1 if flat else 2]
        if positions.tensor.rank == 1:
            positions = b.positions(positions, b.dims(values=(n, length), shape=(2,)))
        heads = a.num_heads
        if flat and not heads:
            heads = quotient("RotaryEmbedding", x.tensor.dims[2], cos.tensor.dims[1] * 2)
        return b.RotaryEmbedding(
            x, cos, sin, positions, interleaved=a.interleaved, num_heads=heads or None,
            rotary_embedding_dim=a.rotary_embedding_dim,
        )  # fmt: skip


@op("section_angles", own_attributes="sections=ints turns=bool")
class SectionAngles:
    """Angles `[N, L, D/2]` from a cache `[positions, D/2]` and three positions per token, `[3, N, L]`.

    `sections` says how many angles belong to each of the positions: section after section, or, if interleaved, every
    third to the second and the third as long as these have any, and all others to the first.
    """

    operands = ("cache", "positions")

    def body(t, cache, positions, *, a):
        _, n, length = positions.shape
        first, second, third = a.sections
        equal_dims(
            cache.shape[1],
            first + second + third,
            "`MRotaryEmbedding`: the angles of a position and of its sections",
        )
        t.check(
            positions.shape,
            lambda *i: (cast(I64, positions[i]) >= 0) & (cast(I64, positions[i]) < wrap(cache.shape[0])),
            "`MRotaryEmbedding` has a position outside of the cache",
        )

        def stream(k):
            if a.turns:
                is_second, is_third = equal(k % 3, 1) & (k < 3 * second), equal(k % 3, 2) & (k < 3 * third)
            else:
                is_second, is_third = (k >= first) & (k < first + second), k >= first + second
            return where(is_second, wrap(1), where(is_third, wrap(2), wrap(0)))

        return t.map(
            (n, length, cache.shape[1]), lambda i, j, k: cache[cast(I64, positions[stream(k), i, j]), k], name="angles"
        )


@op(
    f"{DOMAIN}.MRotaryEmbedding",
    signature=FormalSignature.of(
        "input position_ids cos_cache sin_cache", "output", mrope_section=None, mrope_layout=0, interleaved=0,
        num_heads=0,
        rotary_embedding_dim=0, scale=1.0, is_packed_batching=0,
    ),
)  # fmt: skip
class MRotaryEmbedding:
    """RotaryEmbedding by a token's positions in time, height and width, each for a section of the angles."""

    def composite(b, x, positions, cos, sin, *, a):
        ids, sections = positions.tensor, tuple(a.mrope_section or ())
        if ids.rank != 3 or ids.dims[0] != 3 or len(sections) != 3 or a.mrope_layout not in (0, 1):
            raise Invalid(
                f"`MRotaryEmbedding` with position_ids {ids}, mrope_section={sections} and "
                f"mrope_layout={a.mrope_layout}",
                code="OCC0107",
                help="positions must be `[3, batch, sequence]`, with three sections, in layout 0 or 1",
            )
        angles = (b.section_angles(v, positions, sections=sections, turns=a.mrope_layout == 1) for v in (cos, sin))
        heads = a.num_heads
        if x.tensor.rank == 3 and not heads:
            heads = quotient("MRotaryEmbedding", x.tensor.dims[2], cos.tensor.dims[1] * 2)
        return b.RotaryEmbedding(
            x, *angles, interleaved=a.interleaved, num_heads=heads or None, rotary_embedding_dim=a.rotary_embedding_dim
        )


ALL = (Positions, RotaryEmbedding, SectionAngles, MRotaryEmbedding)
