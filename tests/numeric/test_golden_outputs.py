"""What earlier releases computed: every later one computes the same, on every target (`python -m tools.golden` keeps it)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import TARGETS

import occ

FOLDER = Path(__file__).parents[1] / "golden"
RELEASES = sorted(FOLDER.glob("*.npz"))
CASES = [(path, name) for path in RELEASES for name in sorted({key.partition("/")[0] for key in np.load(path).files})]
ROUNDING = {"f": 2e-5, "e": 2e-3}  # as a share of the largest element; targets order their sums differently


def test_this_release_has_its_own():
    assert occ.__version__ in {p.stem for p in RELEASES}, "python -m tools.golden"


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("release", "name"), CASES, ids=lambda v: v.stem if isinstance(v, Path) else v)
def test_outputs_are_those_of_the_release(release: Path, name: str, target: str):
    with np.load(release) as kept:
        mine = {key.removeprefix(f"{name}/"): kept[key] for key in kept.files if key.startswith(f"{name}/")}
    inputs = {key.removeprefix("in/"): x for key, x in mine.items() if key.startswith("in/")}
    wanted = {key.removeprefix("out/"): y for key, y in mine.items() if key.startswith("out/")}
    got = occ.compile(mine["model"].tobytes(), target).run(inputs)
    assert {n: (y.dtype, y.shape) for n, y in got.items()} == {n: (y.dtype, y.shape) for n, y in wanted.items()}
    for output, want in wanted.items():
        if want.dtype.char in ROUNDING:
            most = float(np.abs(want.astype(np.float64)).max())
            np.testing.assert_allclose(got[output], want, rtol=0, atol=ROUNDING[want.dtype.char] * most)
        else:
            np.testing.assert_array_equal(got[output], want)
