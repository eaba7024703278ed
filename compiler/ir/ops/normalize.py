"""Normalisations. Means and variances are computed in the accumulation type of the data."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence

from occ.compiler.ir.dim import floordiv
from occ.compiler.ir.operator.random_shapes import per_channel, picture
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.reduce import count_of, over_axes, squeeze
from occ.compiler.ir.shape import broadcasts_to, equal_dims, normalize_axes, normalize_axis, show_shape
from occ.compiler.ir.te import functions as f
from occ.compiler.ir.te.expr import Expr, cast, equal, literal, maximum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


@op("BatchNormalization", sample=per_channel, writes="any")
class BatchNormalization:
    """`scale * (x - mean) / sqrt(var + epsilon) + bias` per channel.

    In training mode mean and variance are those of the data, and the running ones are updated by `1 - momentum`.
    """

    def body(t, x, scale, bias, mean, var, *, a):
        _per_channel("BatchNormalization", x, scale, bias, mean, var)
        running = ()
        if a.training_mode:
            axes = tuple(k for k in range(x.rank) if k != 1)
            own_mean, own_var = (squeeze(t, m, axes) for m in moments(t, x, axes, _kept(axes))[1:])
            running = tuple(
                t.map(old.shape, lambda c, o=old, n=new: cast(o.dtype, _moved(o[c], n[c], a.momentum)), name="running")
                for old, new in ((mean, own_mean), (var, own_var))
            )
            mean, var = own_mean, own_var

        def element(*i):
            c = i[1] if x.rank > 1 else wrap(0)
            dtype = f.compute_type(x.dtype)
            factor = cast(dtype, scale[c]) / f.root(cast(dtype, var[c]) + a.epsilon)
            return cast(x.dtype, (cast(dtype, x[i]) - cast(dtype, mean[c])) * factor + cast(dtype, bias[c]))

        y = t.map(x.shape, element, name="batch_norm")
        return (y, *running) if running else y


def _moved(old: Expr, new: Expr, momentum: float) -> Expr:
    return cast(new.dtype, old) * momentum + new * (1 - momentum)


def moments(
    t: Builder, x: Tensor, axes: Sequence[int], kept: Callable[[Sequence[Expr]], tuple[Expr, ...]]
) -> tuple[Tensor, Tensor, Tensor]:
    """The centred data, the mean and the variance over `axes` (kept dims); `kept(i)` indexes the latter two."""
    dtype = f.compute_type(x.dtype)
    n = count_of(x, axes, dtype)
    total = over_axes(t, "sum", x, axes, lambda e: cast(dtype, e))
    mean = t.map(total.shape, lambda *i: total[i] / n, name="mean")
    centred = t.map(x.shape, lambda *i: cast(dtype, x[i]) - mean[kept(i)], name="centred")
    square = over_axes(t, "sum", centred, axes, lambda e: e * e)
    var = t.map(square.shape, lambda *i: square[i] / n, name="var")
    return centred, mean, var


def _per_channel(name: str, x: Tensor, *operands: Tensor) -> None:
    """Require one element per channel from operands; the runtime checks what cannot be proved.

    Raises:
        Invalid: one does not have it.
    """
    channels = x.shape[1] if x.rank > 1 else 1
    for y in operands:
        equal_dims(
            y.shape[0] if y.rank else 1, channels, f"`{name}`: an operand does not have one element of each channel"
        )


def _kept(axes: Sequence[int]) -> Callable[[Sequence[Expr]], tuple[Expr, ...]]:
    def index(i: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(wrap(0) if k in axes else e for k, e in enumerate(i))

    return index


def _broadcasts(x: Tensor, operands: Sequence[Tensor | None], name: str) -> None:
    """Require that operands broadcast to `x`; the runtime checks what cannot be proved.

    Raises:
        Invalid: one does not.
    """
    for y in (y for y in operands if y is not None):
        what = f"`{name}`: {show_shape(y.shape)} does not broadcast to {show_shape(x.shape)}"
        broadcasts_to(y.shape, x.shape, what)


def _inverse_deviation(t: Builder, var: Tensor, epsilon: float) -> Tensor:
    """`1 / sqrt(var + epsilon)` of each row: elements are multiplied by it, since divisions are slow."""
    return t.map(var.shape, lambda *i: literal(1, var.dtype) / f.root(var[i] + epsilon), name="inv_std")


@op("LayerNormalization", reads="last")
class LayerNormalization:
    """`(x - mean) / sqrt(var + epsilon) * scale + bias` over the axes from `axis` on.

    Optional results are the mean and the inverse deviation.
    """

    def body(t, x, scale, bias=None, *, a):
        axes = tuple(range(normalize_axis(a.axis, x.rank, "LayerNormalization"), x.rank))
        _broadcasts(x, (scale, bias), "LayerNormalization")
        kept = _kept(axes)
        centred, mean, var = moments(t, x, axes, kept)
        inverse = _inverse_deviation(t, var, a.epsilon)

        def element(*i):
            value = cast(x.dtype, centred[i] * inverse[kept(i)]) * scale.at(i)
            return value if bias is None else value + bias.at(i)

        return t.map(x.shape, element, name="layer_norm"), mean, inverse


@op("RMSNormalization", reads="last")
class RMSNormalization:
    """`x / sqrt(mean(x * x) + epsilon) * scale` over the axes from `axis` on."""

    def body(t, x, scale, *, a):
        axes = tuple(range(normalize_axis(a.axis, x.rank, "RMSNormalization"), x.rank))
        _broadcasts(x, (scale,), "RMSNormalization")
        kept, dtype = _kept(axes), f.compute_type(x.dtype)
        n = count_of(x, axes, dtype)
        square = over_axes(t, "sum", x, axes, lambda e: cast(dtype, e) * cast(dtype, e))
        inverse = t.map(square.shape, lambda *i: literal(1, dtype) / f.root(square[i] / n + a.epsilon), name="inv_rms")
        return t.map(
            x.shape,
            lambda *i: cast(scale.dtype, cast(dtype, x[i]) * inverse[kept(i)]) * scale.at(i),
            name="rms_norm",
        )


@op("InstanceNormalization", sample=per_channel, reads="rows")
class InstanceNormalization:
    def body(t, x, scale, bias, *, a):
        _per_channel("InstanceNormalization", x, scale, bias)
        axes = tuple(range(2, x.rank))
        kept = _kept(axes)
        centred, _, var = moments(t, x, axes, kept)
        dtype, inverse = var.dtype, _inverse_deviation(t, var, a.epsilon)

        def element(*i):
            norm = centred[i] * inverse[kept(i)]
            return cast(x.dtype, norm * cast(dtype, scale[i[1]]) + cast(dtype, bias[i[1]]))

        return t.map(x.shape, element, name="instance_norm")


@op("LRN", sample=picture, writes="any")
class LRN:
    """`x / (bias + alpha/size * sum of squares over a window of channels) ** beta`."""

    def body(t, x, *, a):
        before = (a.size - 1) // 2
        n = x.rank - 2
        padded = t.pad(x, (0, before, *(0,) * n), (0, a.size - 1 - before, *(0,) * n), literal(0, x.dtype))

        def square(*i):
            value = f.in_acc(padded[(i[0], i[1] + i[-1], *i[2:-1])])
            return value * value

        total = t.sum(x.shape, [a.size], square)

        def element(*i):
            base = total[i] * (a.alpha / a.size) + a.bias
            return cast(x.dtype, f.in_acc(x[i]) / f.power(base, literal(a.beta, base.dtype)))

        return t.map(x.shape, element, name="lrn")


@op("LpNormalization", reads="last")
class LpNormalization:
    def body(t, x, *, a):
        axis = normalize_axis(a.axis, x.rank, "LpNormalization")
        kept = _kept([axis])
        if a.p == 1:
            norm = over_axes(t, "sum", x, [axis], lambda e: f.absolute(f.in_acc(e)))
        else:
            norm = over_axes(t, "sum", x, [axis], lambda e: f.in_acc(e) * f.in_acc(e))

        def element(*i):
            length = norm[kept(i)] if a.p == 1 else f.root(norm[kept(i)])
            zero = literal(0, length.dtype)
            return cast(x.dtype, where(equal(length, 0), zero, f.in_acc(x[i]) / length))

        return t.map(x.shape, element, name="lp_norm")


@op("GroupNormalization", rank=same, reads="rows")
class GroupNormalization:
    """`(x - mean) / sqrt(var + epsilon)` per group of channels, then scale and bias per channel."""

    def body(t, x, scale, bias, *, a):
        _per_channel("GroupNormalization", x, scale, bias)
        n, c, *rest = x.shape
        each = floordiv(c, a.num_groups)
        equal_dims(each * a.num_groups, c, "`GroupNormalization`: channels in groups of one size")
        dtype = f.compute_type(x.dtype)
        grouped = t.map(
            (n, a.num_groups, each, *rest),
            lambda i, g, k, *s: cast(dtype, x[(i, g * wrap(each) + k, *s)]),
            name="grouped",
        )
        axes = tuple(range(2, grouped.rank))
        centred, _, var = moments(t, grouped, axes, _kept(axes))
        inverse = _inverse_deviation(t, var, a.epsilon)
        zeros = (0,) * (len(rest) + 1)

        def element(*i):
            g, k = i[1] // wrap(each), i[1] % wrap(each)
            norm = centred[(i[0], g, k, *i[2:])] * inverse[(i[0], g, *zeros)]
            return cast(x.dtype, norm * cast(dtype, scale[i[1]]) + cast(dtype, bias[i[1]]))

        return t.map(x.shape, element, name="group_norm")


@op("MeanVarianceNormalization", reads="rows")
class MeanVarianceNormalization:
    def body(t, x, *, a):
        axes = normalize_axes((0, 2, 3) if a.axes is None else a.axes, x.rank, "MeanVarianceNormalization")
        kept = _kept(axes)
        centred, _, var = moments(t, x, axes, kept)
        return t.map(x.shape, lambda *i: cast(x.dtype, centred[i] / maximum(f.root(var[kept(i)]), 1e-9)), name="mvn")


ALL = (
    BatchNormalization, LayerNormalization, RMSNormalization, InstanceNormalization, LRN, LpNormalization,
    GroupNormalization, MeanVarianceNormalization,
)  # fmt: skip
