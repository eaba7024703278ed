"""Code without a native entry: the message names what in the plan is the reason, not the packages of targets."""

import pytest
from building import mlp

import occ
from occ.compiler.driver import compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.native_entry import entry
from occ.compiler.native_entry.read_routines import Unsuitable


def test_the_plan_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise Unsuitable("this model has no native entry: node `mul` has an operand of a new kind")

    for module in (entry, compilation):
        monkeypatch.setattr(module, "routines", refused)
    with pytest.raises(occ.CompileError, match=r"node `mul` has an operand of a new kind") as caught:
        compilation.Compilation(mlp(), Settings("cpu-jit", cache=False)).artifact()
    assert "OCC0403" in str(caught.value)
    assert "package" not in str(caught.value)
