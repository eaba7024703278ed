"""The vector axis of a convolution: its channels, or the rows of its planes."""

from __future__ import annotations

from types import SimpleNamespace

from occ.compiler.ir import dim
from occ.compiler.ir.te.function import Tensor

_HALF, _WHOLE = 8, 16  # elements of half a vector, and of one
_MANY_TAPS, _LONG_ROW = 49, 32  # taps of a window, and elements of a row


def fits_planes(x: Tensor, w: Tensor, a: SimpleNamespace) -> bool:
    """Whether a depthwise convolution is as fast along rows as along channels: windows of images, without strides."""
    width = x.shape[-1]
    small = all(isinstance(n, int) for n in w.shape[2:]) and all(s == 1 for s in a.strides or ())
    return x.rank == 4 and small and (not isinstance(width, int) or width >= 14)


def runs_along_rows(x: Tensor, w: Tensor, a: SimpleNamespace) -> bool:
    """Whether a convolution's vectors run along image rows, because few filters do not fill one.

    Fewer than 8 filters always do. With fewer than 16, up to half of a 512-bit vector would be idle: on such processors
    they also do if rows are long, and there are so many taps that converting to channels last for other operators takes
    less than that. Zen 5, one thread, 8 filters of 8x3x39 on 172x264: 9.1 --> 3.0 ms.
    """
    taps, filters, width = dim.product(w.shape[2:]), w.shape[0], x.shape[-1]
    if taps == 1 or not isinstance(filters, int):
        return False
    long = isinstance(width, int) and width >= _LONG_ROW and (a.strides or (1,))[-1] == 1
    return filters < _HALF or (filters < _WHOLE and isinstance(taps, int) and taps >= _MANY_TAPS and long)
