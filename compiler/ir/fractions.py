"""The shortest decimal that a 32-bit float rounds from: 0.4 rather than 13421773 / 2**25."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def shortest_fraction(number: float) -> Fraction:
    """The fraction with the least denominator that is rounded to the same `f32`: 2/5 for `float32(0.4)`, 1/3 for `float32(1/3)`.

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
    return found if float(np.float32(float(found))) == number else exact  # half-way ends belong to one of two numbers


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction with the least denominator between two, by the Stern-Brocot tree (Graham, Knuth, Patashnik: Concrete
    Mathematics, section 4.5): a step of Euclid's algorithm for each level, not for each number.
    """
    whole = -(-low.numerator // low.denominator)
    if whole <= high:
        return Fraction(whole)
    whole -= 1
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))
