"""LinearAttention as a Scan over time."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, floordiv
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.attention import head_scale, quotient, reshape, zeros
from occ.compiler.ir.shape import equal_part, equal_shapes
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, wrap
from occ.compiler.ir.te.function import Tensor
from occ.compiler.ir.types import TensorType


def _shared(h: Expr, heads: int, fewer: int) -> Expr:
    """The index, out of `fewer` heads, that serves head `h` of `heads`."""
    return h if heads == fewer else h // wrap(floordiv(heads, fewer))


@op("linear_attention_step", own_attributes="scale=float")
class LinearAttentionStep:
    """One step of LinearAttention in f32: the state decays, takes the outer product of key and value, and is read."""

    operands = ("state", "q", "k", "v", "decay", "beta")

    def body(t, state, q, k, v, decay=None, beta=None, *, a):
        n, heads, dk, dv = state.shape
        asked = q.shape[1]
        every = max(asked, heads)

        def read(x: Tensor, *i: Expr) -> Expr:
            return cast(state.dtype, x.at(i))

        def key(b: Expr, h: Expr, d: Expr) -> Expr:  # one may serve several heads of the state
            return read(k, b, _shared(h, heads, k.shape[1]), d)

        faded = state
        if decay is not None:
            faded = t.map(state.shape, lambda b, h, d, m: state[b, h, d, m] * f.exp(read(decay, b, h, d)), name="faded")
        written = t.map((n, heads, dv), lambda b, h, m: read(v, b, h, m), name="written")
        if beta is not None:
            found = t.sum((n, heads, dv), [dk], lambda b, h, m, d: faded[b, h, d, m] * key(b, h, d), name="found")
            written = t.map(
                (n, heads, dv),
                lambda b, h, m: read(beta, b, h, wrap(0)) * (read(v, b, h, m) - found[b, h, m]),
                name="moved",
            )
        new = t.map(state.shape, lambda b, h, d, m: faded[b, h, d, m] + key(b, h, d) * written[b, h, m], name="state")

        def answer(b: Expr, h: Expr, m: Expr, d: Expr) -> Expr:
            return read(q, b, _shared(h, every, asked), d) * new[b, _shared(h, every, heads), d, m]

        out = t.sum((n, every, dv), [dk], answer, name="out")
        return new, t.map(out.shape, lambda *i: cast(q.dtype, out[i] * a.scale), name="scaled")


def infer(q, k, v, past=None, decay=None, beta=None, *, a):
    """Types of the output and of the state, f32 unless one is given."""
    for name, x in (("query", q), ("key", k), ("value", v), ("decay", decay), ("beta", beta)):
        if x is not None:
            equal_shapes(x.shape[:-1] if x.rank == 3 else x.shape, q.shape[:2], f"the batch and the steps of `{name}`")
    n, length, _ = q.shape
    dk = quotient("LinearAttention", q.shape[2], a.q_num_heads)
    dv = quotient("LinearAttention", v.shape[2], a.kv_num_heads)
    if past is not None:
        equal_shapes(past.shape, (n, a.kv_num_heads, dk, dv), "the past state")
    state = TensorType(q.dtype if past is None else past.dtype, (n, a.kv_num_heads, dk, dv))
    return TensorType(q.dtype, (n, length, max(a.q_num_heads, a.kv_num_heads) * dv)), state


def composite(b, q, k, v, past=None, decay=None, beta=None, *, a):
    """A Scan over time.

    Queries share the heads of the state, or the state shares those of queries and keys.

    Raises:
        Invalid: the rule is unknown, or does not match its operands.
    """
    rule = a.update_rule
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise Invalid(f"`update_rule` of `LinearAttention` is {rule!r}", code="OCC0107")
    if ("gated" in rule) != (decay is not None) or ("delta" in rule) != (beta is not None):
        raise Invalid(f"`LinearAttention`: the rule {rule!r} and its operands `decay` and `beta` do not fit")
    heads = a.kv_num_heads
    n, length, width = q.tensor.dims
    dk, dv = quotient("LinearAttention", width, a.q_num_heads), quotient("LinearAttention", v.tensor.dims[2], heads)
    keys = quotient("LinearAttention", k.tensor.dims[2], dk)
    few, many = sorted((a.q_num_heads, heads))
    equal_part(heads, keys, "`LinearAttention`: the heads of the state and of keys")
    equal_part(many, few, "`LinearAttention`: the heads of queries and of the state")
    parts = [_by_heads(b, q, a.q_num_heads), _by_heads(b, k, keys), _by_heads(b, v, heads)]
    parts += [_by_heads(b, decay, heads)] if decay is not None else []
    parts += [_by_heads(b, beta, min(heads, beta.tensor.dims[2]))] if beta is not None else []
    kept = TensorType(F32, (n, heads, dk, dv))
    start = zeros(b, kept) if past is None else b.Cast(past, to=F32)
    scale = a.scale or head_scale(parts[0], None, name="LinearAttention")

    gated = decay is not None

    def step(b, state_, q_, k_, v_, *rest):
        gate, rate = rest[0] if gated else None, rest[-1] if beta is not None else None
        return b.linear_attention_step(state_, q_, k_, v_, gate, rate, n_results=2, scale=float(scale))

    slices = [x.tensor.with_shape((n, *x.tensor.dims[2:])) for x in parts]
    y = TensorType(q.tensor.dtype, (length, n, max(a.q_num_heads, heads), dv))
    state, out = b.call_body("Scan", [start, *parts], (), [kept, *slices], step, [kept, y], num_scan_inputs=len(parts))
    flat = reshape(b, _swapped(b, out), (n, length, max(a.q_num_heads, heads) * dv))
    return flat, b.Cast(state, to=q.tensor.dtype if past is None else past.tensor.dtype)


def _by_heads(b: GraphBuilder, x: Value, heads: Dim) -> Value:
    """Time steps first, since native code scans along the first axis: `[length, n, heads, size]`."""
    n, length, width = x.tensor.dims
    return _swapped(b, reshape(b, x, (n, length, heads, quotient("LinearAttention", width, heads))))


def _swapped(b: GraphBuilder, x: Value) -> Value:
    """The first two axes swapped; with an extent of 1 the bytes are unchanged."""
    first, second, *rest = x.tensor.dims
    return reshape(b, x, (second, first, *rest)) if 1 in (first, second) else b.Transpose(x, perm=(1, 0, 2, 3))


@op("LinearAttention")
class LinearAttention:
    """Attention with a recurrent f32 state per head instead of a KV cache."""

    infer = infer
    composite = composite


ALL = (LinearAttentionStep, LinearAttention)
