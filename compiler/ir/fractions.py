"""The shortest decimal that rounds to a 32-bit float: 0.4 rather than 13421773 / 2**25."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def shortest_fraction(number: float) -> Fraction:
    """The fraction with the smallest denominator that rounds to the same `f32`: 2/5 for `float32(0.4)`.

    Args:
        number: finite, and an `f32` exactly.
    """
    exact = Fraction(number)
    if exact < 0:
        return -shortest_fraction(-number)
    with np.errstate(over="ignore"):  # after the greatest number comes infinity
        below, above = (float(np.nextafter(np.float32(number), np.float32(end))) for end in (-np.inf, np.inf))
    if above == np.inf:
        return exact
    found = _simplest((exact + Fraction(below)) / 2, (exact + Fraction(above)) / 2)
    return found if float(np.float32(float(found))) == number else exact  # half-way ends round to one of two numbers


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction with the smallest denominator in an interval, by the Stern-Brocot tree.

    Graham, Knuth, Patashnik: Concrete Mathematics, section 4.5; with a step of Euclid's algorithm per level, not per
    number.

    """
    whole = -(-low.numerator // low.denominator)
    if whole <= high:
        return Fraction(whole)
    whole -= 1
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))
