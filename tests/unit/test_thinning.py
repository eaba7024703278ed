"""tests/thinning.py: the cases of a thinned test that stay in `make test`."""

from __future__ import annotations

from itertools import product

from thinning import kept


def test_one_parameter_keeps_every_third_value():
    assert kept([{"size": k} for k in range(7)]) == [True, False, False, True, False, False, True]
    assert kept([{"size": k} for k in range(4)], every=2) == [True, False, True, False]


def test_parameters_that_change_together_are_one():
    assert kept([{"x": k, "y": k} for k in range(4)]) == [True, False, False, True]


def test_several_parameters_keep_every_value_of_each():
    cases = [{"x": x, "y": y, "z": z} for x, y, z in product(range(3), range(4), range(2))]
    stay = [case for case, stays in zip(cases, kept(cases), strict=True) if stays]
    assert {name: {case[name] for case in stay} for name in "xyz"} == {"x": {0, 1, 2}, "y": {0, 1, 2, 3}, "z": {0, 1}}
    assert len(stay) < len(cases) / 2
