"""Every model of the folders in OCC_TEST_MODELS builds for `cpu`, and agrees with onnxruntime in one run.

What compiles other targets alone can fail in Halide: two of 30 models once did not compile, and nothing said so. `test_exported`
compares outputs more closely, and more runs of them; here are also models whose data decide how they are quantised. Those differ by
codes that round the other way, and by what comes of that: 0.03 of the norm of an output for a transformer of 6 layers.
"""

from __future__ import annotations

import numpy as np
import pytest
from exported import Exported, folders, session

import occ

MODELS = folders()
DYNAMIC = 0.1  # of the norm of an output

pytestmark = [
    pytest.mark.slow,
    pytest.mark.toolchain,
    pytest.mark.skipif(not MODELS, reason="OCC_TEST_MODELS names no folder of models"),
]


@pytest.mark.parametrize("exported", MODELS, ids=lambda m: m.name)
def test_a_model_builds_and_runs(exported: Exported) -> None:
    inputs = next(exported.inputs())
    ours = occ.compile(exported.path, "cpu", threads=1).run(inputs)
    theirs = session(exported.path).run(list(ours), dict(inputs))
    for (name, got), want in zip(ours.items(), theirs, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        if got.dtype.kind != "f" and not exported.is_coded:
            np.testing.assert_array_equal(got, want, err_msg=name)
            continue
        x, y = got.astype(np.float64), want.astype(np.float64)
        assert np.array_equal(np.isfinite(x), np.isfinite(y)), name
        off = np.linalg.norm((x - y)[np.isfinite(y)]) / (np.linalg.norm(y[np.isfinite(y)]) or 1.0)
        assert off <= (DYNAMIC if exported.is_coded else 10 * exported.tolerance), f"{name}: {off:.1e} of its norm"
