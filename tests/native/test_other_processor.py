"""An artifact on a processor that lacks what it was built for is one error, also where /proc/cpuinfo is that of another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from building import mlp

import occ
from occ.runtime import machine

QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
RUN = """
import occ
try:
    occ.load({artifact!r})
except Exception as e:
    print(e)
"""


def test_what_the_processor_denies_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.flags()
    asked = SimpleNamespace(__cpu_features__={"AVX512F": False, "FMA3": False})
    monkeypatch.setattr(machine, "numpy_core", SimpleNamespace(_multiarray_umath=asked))
    found = machine.features_of(machine.flags.__wrapped__())
    assert found == [f for f in machine.features_of(whole) if f != "fma" and not f.startswith("avx512")]
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", "AVX512F FMA3")  # then numpy does not say what the processor has
    assert machine.flags.__wrapped__() >= whole


@pytest.mark.slow
@pytest.mark.skipif(QEMU is None or "avx512f" not in machine.flags(), reason="needs qemu-x86_64 and AVX-512")
def test_avx512_on_a_processor_without_it(tmp_path: Path) -> None:
    """The emulator hands the host's /proc/cpuinfo through; the run ended with SIGILL."""
    assert QEMU is not None
    artifact = tmp_path / "m.occ"
    occ.compile(mlp(), "cpu").save(artifact)
    script = RUN.format(artifact=os.fspath(artifact))
    command = [QEMU, "-cpu", "Haswell", sys.executable, "-c", script]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    assert "the artifact was built for a processor with `avx512`, which this one lacks" in made.stdout
