"""A tenth of the backend suite on a machine of another kind, in an emulator; slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import suite
from test_suite import FAST, excluded

from occ.compiler.driver.settings import Settings
from occ.compiler.objects.processors import ARCHES
from occ.compiler.standalone.emulated import missing
from occ.compiler.tuning.warm import warm

ARM = next(a for a in ARCHES if a.name == "aarch64")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.toolchain,
    pytest.mark.skipif(bool(missing(ARM)), reason=f"apt install {missing(ARM)}"),
]


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> None:
    """Builds the kernels of the selected tests at once."""
    items = (i for i in request.session.items if i.path == Path(__file__))
    asked = {getattr(i, "callspec", SimpleNamespace(params={})).params.get("name") for i in items}
    settings = Settings("cpu", options={"halide.target": ARM.target})
    warm(((n, m) for n, m in suite.models() if n in asked), settings)


@pytest.fixture(scope="module")
def cases() -> dict[str, Callable[[], None]]:
    return suite.on_device("cpu", "CPU:arm-64")


@pytest.mark.parametrize("name", sorted(FAST))
def test_on_arm(name: str, cases: dict[str, Callable[[], None]], kernels: None):
    if reason := excluded().get((name, "cpu")):
        pytest.skip(reason)
    try:
        cases[name]()
    except suite.Unsupported as e:
        if "OCC0306" not in str(e):  # nothing else is in the way of any case
            raise
        pytest.skip("programs without Python cannot run it")
