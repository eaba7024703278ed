"""A tenth of the backend suite on a machine of another kind, in an emulator; slow."""

from __future__ import annotations

import pytest
import suite
from test_suite import FAST, excluded

from occ.compiler.driver.settings import Settings
from occ.compiler.objects.processors import ARCHES
from occ.compiler.standalone.emulated import missing
from occ.compiler.tools.warm import warm

ARM = next(a for a in ARCHES if a.name == "aarch64")


@pytest.mark.slow
@pytest.mark.toolchain
@pytest.mark.skipif(bool(missing(ARM)), reason=f"apt install {missing(ARM)}")
def test_a_tenth_of_the_suite_on_arm():
    warm(((n, m) for n, m in suite.models() if n in FAST), Settings("cpu", options={"halide.target": ARM.halide}))
    failed: dict[str, str] = {}
    passed = 0
    for name, case in suite.on_device("cpu", "CPU:arm-64").items():
        if name not in FAST or (name, "cpu") in excluded():
            continue
        try:
            case()
            passed += 1
        except suite.Unsupported:  # programs without Python cannot run it
            continue
        except Exception as e:
            failed[name] = str(e)[:200]
    assert not failed
    assert passed > 140
