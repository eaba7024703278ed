"""Windows, Fourier transforms and mel filters. Angles are computed in f64."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, floordiv
from occ.compiler.ir.dtype import F32, F64
from occ.compiler.ir.operator.ranks import fixed, same
from occ.compiler.ir.operator.scalars import scalar
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.movement import static_dims
from occ.compiler.ir.shape import assume_equal, at_least, equal_dims, normalize_axis, show_shape
from occ.compiler.ir.te.expr import Expr, call, cast, equal, literal, maximum, where, wrap
from occ.compiler.ir.te.function import Builder, Tensor


def _one(operator: str, name: str, operand: Tensor) -> Dim:
    values = static_dims(operator, name, operand)
    if len(values) != 1:
        raise Invalid(f"`{name}` of `{operator}` has {len(values)} elements, not one")
    return values[0]


def _positive(operator: str, name: str, size: Dim) -> Dim:
    return at_least(size, 1, f"{name} of `{operator}` is {size}, but must be positive")


def _window(name: str, coefficients: tuple[float, ...]) -> OpSpec:
    """A sum of cosines of multiples of the angle `2 pi n / N`, N one less for a symmetric window."""

    def body(t: Builder, size: Tensor, *, a: SimpleNamespace) -> Tensor:
        n = _one(name, "size", size)
        whole = cast(F64, wrap(n)) - (0.0 if a.periodic else 1.0)

        def element(k: Expr) -> Expr:
            angle = cast(F64, k) * (2 * pi) / whole
            total: Expr = literal(coefficients[0], F64)
            for multiple, c in enumerate(coefficients[1:], 1):
                total = total + call("cos", angle * multiple) * c
            return cast(a.output_datatype, total)

        return t.map([n], element, name="window")

    return OpSpec(name, {"body": body, "static": ("size",), "rank": fixed(1)})


def _turns(t: Builder, n: Dim) -> tuple[Tensor, Tensor]:
    """Cosine and sine of `2 pi k / n` for all k below n."""

    def angle(k: Expr) -> Expr:
        return cast(F64, k) * (2 * pi) / cast(F64, wrap(n))

    cosine = t.map([n], lambda k: call("cos", angle(k)), name="cosine")
    return cosine, t.map([n], lambda k: call("sin", angle(k)), name="sine")


def fourier(
    t: Builder, read: Callable[..., Expr | None], n: Dim, lead: tuple[Dim, ...], bins: Dim, used: Dim, *, inverse: bool
) -> Callable[..., Expr]:
    """`sum over k < used of x[k] * exp(-+2 pi i k f / n)`: a function of (part 0 or 1, *lead, f).

    `read(part, *lead, k)` returns the real and imaginary parts of the signal in f64, None for a part that is zero.
    """
    cosine, sine = _turns(t, n)
    sign = 1.0 if inverse else -1.0

    def term(part: int) -> Callable[..., Expr]:
        def of(*i: Expr) -> Expr:
            *at, f, k = i
            turn = (f * k) % wrap(n)
            c, s = cosine[turn], sine[turn] * sign
            real, imaginary = read(0, *at, k), read(1, *at, k)
            assert real is not None, "a signal has a real part"
            straight, crossed = (c, s) if part == 0 else (s, c)
            value = real * straight
            if imaginary is None:
                return value
            return value - imaginary * crossed if part == 0 else value + imaginary * crossed

        return of

    parts = [t.sum((*lead, bins), [used], term(part), name="fourier") for part in (0, 1)]

    def element(part: Expr, *at: Expr) -> Expr:
        return where(equal(part, 0), parts[0][at], parts[1][at])

    return element


def fourier_matrix(length: int, parts: int, n: int, *, inverse: bool, onesided: bool) -> np.ndarray:
    """`[length * parts, bins * parts of the result]` in f64: weights of a transform of `n` elements."""
    basis = np.kron(np.eye(length), np.array([[1], [1j]])[:parts])
    if inverse and onesided:
        return np.fft.irfft(basis, n)
    made = np.fft.ifft(basis, n) if inverse else np.fft.fft(basis, n)
    made = made[:, : n // 2 + 1] if onesided else made
    return np.stack([made.real, made.imag], -1).reshape(length * parts, -1)


def _imaginary(x: Tensor, index: tuple[Expr, ...]) -> Expr | None:
    """The imaginary part, in f64, of an element with its parts on the last axis; None if there is none.

    If that extent is symbolic, it is decided at run time.
    """
    parts = x.shape[-1]
    if parts == 1:
        return None
    value = cast(F64, x[(*index, wrap(parts - 1))])
    return value if isinstance(parts, int) else where(equal(wrap(parts), 2), value, literal(0, F64))


def _check_parts(name: str, x: Tensor) -> None:
    """Require one or two parts on the last axis; if its extent is symbolic, the runtime checks it.

    Raises:
        Invalid: it certainly has not.
    """
    parts = x.shape[-1]
    if isinstance(parts, int) and parts not in (1, 2):
        raise Invalid(f"`{name}` of {show_shape(x.shape)}: the last axis must have one element (real) or two (complex)")
    assume_equal(dim.maximum(dim.minimum(parts, 2), 1), parts)


@op("DFT", static=("dft_length", "axis"), rank=same)
class DFT:
    """Discrete Fourier transform along an axis; real and imaginary parts are on the last axis (ONNX DFT 20)."""

    def body(t, x, dft_length=None, axis=None, *, a):
        k = -2 if axis is None else _one("DFT", "axis", axis)
        k = normalize_axis(int(k), x.rank, "DFT")
        if x.rank < 2 or k == x.rank - 1:
            raise Invalid(
                f"`DFT` along axis {k} of {show_shape(x.shape)}: the last axis has the real and imaginary parts"
            )
        _check_parts("DFT", x)
        size = x.shape[k]
        to_real = bool(a.inverse and a.onesided)
        n = _one("DFT", "dft_length", dft_length) if dft_length is not None else 2 * (size - 1) if to_real else size
        n = _positive("DFT", "the length", n)
        bins = floordiv(n, 2) + 1 if a.onesided and not a.inverse else n
        lead = (*x.shape[:k], *x.shape[k + 1 : -1])

        def at(part: int, *i: Expr) -> Expr | None:
            """The signal, zero past its end; the second half of a one-sided spectrum is the mirrored first one."""
            *outer, p = i
            half = floordiv(n, 2) + 1 if to_real else n
            mirrored = where(p < wrap(half), p, wrap(n) - p) if to_real else p
            place = (*outer[:k], mirrored, *outer[k:])
            read = cast(F64, x[(*place, 0)]) if part == 0 else _imaginary(x, place)
            if read is None:
                return None
            if to_real and part == 1:
                edge = equal(p, 0) | equal(p * 2, wrap(n))  # the spectrum of a real signal is real there
                read = where(edge, literal(0, F64), where(p < wrap(half), read, -read))
            return where(mirrored < wrap(size), read, literal(0, F64))

        value = fourier(t, at, n, lead, bins, n, inverse=bool(a.inverse))
        scale = literal(1, F64) / cast(F64, wrap(n)) if a.inverse else literal(1, F64)

        def element(*i: Expr) -> Expr:
            *outer, part = i
            bin_ = outer.pop(k)
            return cast(x.dtype, value(part, *outer, bin_) * scale)

        shape = (*x.shape[:k], bins, *x.shape[k + 1 : -1], 1 if to_real else 2)
        return t.map(shape, element, name="dft")


@op("STFT", static=("frame_step", "frame_length"), rank=fixed(4))
class STFT:
    """Fourier transforms of overlapping frames of `[batch, length, 1 or 2]`, each times a window."""

    def body(t, signal, frame_step, window=None, frame_length=None, *, a):
        step = _positive("STFT", "frame_step", _one("STFT", "frame_step", frame_step))
        n = None
        if frame_length is not None:
            n = _positive("STFT", "frame_length", _one("STFT", "frame_length", frame_length))
        if window is not None:
            n = window.shape[0] if n is None else equal_dims(n, window.shape[0], "`STFT`: window and frame length")
        if n is None:
            raise Invalid("`STFT` needs a window or a frame length")
        if signal.rank > 2:
            _check_parts("STFT", signal)
        frames = floordiv(signal.shape[1] - n, step) + 1
        bins = floordiv(n, 2) + 1 if a.onesided else n

        def at(part: int, b: Expr, frame: Expr, k: Expr) -> Expr | None:
            index = (b, frame * wrap(step) + k)
            if signal.rank < 3:
                value = cast(F64, signal[index]) if part == 0 else None
            else:
                value = cast(F64, signal[(*index, 0)]) if part == 0 else _imaginary(signal, index)
            return value if window is None or value is None else value * cast(F64, window[k])

        value = fourier(t, at, n, (signal.shape[0], frames), bins, n, inverse=False)
        return t.map(
            (signal.shape[0], frames, bins, 2),
            lambda b, frame, f, part: cast(signal.dtype, value(part, b, frame, f)),
            name="stft",
        )


@op("MelWeightMatrix", static=("num_mel_bins", "dft_length"), rank=fixed(2))
class MelWeightMatrix:
    """Triangular filters at equal steps of the mel scale (ONNX MelWeightMatrix)."""

    def body(t, num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz, *, a):
        bands, n = (
            _one("MelWeightMatrix", "num_mel_bins", num_mel_bins),
            _one("MelWeightMatrix", "dft_length", dft_length),
        )

        def number(x: Tensor) -> Expr:
            return cast(F64, scalar("MelWeightMatrix", x.name, x))

        def mel(hertz: Expr) -> Expr:
            return call("log", hertz / 700.0 + 1.0) * (2595 / log(10))

        low, high = mel(number(lower_edge_hertz)), mel(number(upper_edge_hertz))

        # Edges are whole numbers, whose quotients in f32 are as those in f64 rounded to f32.
        dtype = F64 if a.output_datatype == F64 else F32

        def edge(k: Expr) -> Expr:
            at = cast(F64, k) * ((high - low) / cast(F64, wrap(bands + 2))) + low
            hertz = (call("exp", at * (log(10) / 2595)) - 1.0) * 700.0
            return cast(dtype, call("floor", cast(F64, wrap(n + 1)) * hertz / number(sample_rate)))

        edges = t.map([bands + 2], edge, name="edges")
        widths = t.map([bands + 1], lambda k: maximum(edges[k + 1] - edges[k], 1.0), name="widths")

        def element(j: Expr, i: Expr) -> Expr:
            at, left, centre, right = cast(dtype, j), edges[i], edges[i + 1], edges[i + 2]
            falls, rises = (at >= centre) & (at < right), (at >= left) & (at <= centre)
            climbed = where(equal(centre, left), literal(1, dtype), at - left)  # all at once
            ratio = where(falls, right - at, climbed) / where(falls, widths[i + 1], widths[i])
            return cast(a.output_datatype, where(falls | rises, ratio, literal(0, dtype)))

        return t.map([floordiv(n, 2) + 1, bands], element, name="mel")


ALL = (
    _window("HannWindow", (0.5, -0.5)),
    _window("HammingWindow", (25 / 46, -21 / 46)),
    _window("BlackmanWindow", (0.42, -0.5, 0.08)),
    DFT,
    STFT,
    MelWeightMatrix,
)
