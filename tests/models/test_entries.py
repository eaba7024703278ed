"""Models of the folders in OCC_TEST_MODELS have a native entry, which gives the bits that the Python runner gives."""

from __future__ import annotations

import numpy as np
import pytest
from exported import Exported, folders

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.runtime.native.engine import NativeEngine


@pytest.mark.slow
@pytest.mark.parametrize("exported", folders(), ids=lambda m: m.name)
def test_native_entries_give_what_the_python_runner_gives(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = Compilation(exported.path, Settings("cpu")).artifact()
    sessions = []
    for choice in ("native", "python"):
        monkeypatch.setenv("OCC_ENTRY", choice)
        sessions.append(open_session(artifact, 1))
    native, python = sessions
    assert isinstance(native.engine, NativeEngine)
    assert native.engine._entry is not None
    for inputs in exported.inputs():
        got, want = native.run(dict(inputs)), python.run(dict(inputs))
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], strict=True)
