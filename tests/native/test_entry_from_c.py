"""The native entry is called from C, as docs/native.md says."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
from building import mlp, reference

import occ
from occ.runtime.native.call import EntryCall


def test_the_structure_is_that_of_the_header(tmp_path: Path):
    """docs/native.md has the C declaration; a compiler's offsets are those of ctypes."""
    fields = [name for name, _ in EntryCall._fields_]
    lines = "".join(f'printf("%zu ", offsetof(struct occ_call, {f}));' for f in fields)
    text = f"{c_header()}\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{ {lines} return 0; }}"
    (tmp_path / "a.c").write_text(text)
    subprocess.run([compiler(), "-x", "c", "a.c", "-o", "a"], cwd=tmp_path, check=True)
    said = subprocess.run([str(tmp_path / "a")], capture_output=True, text=True, check=True).stdout
    assert [int(n) for n in said.split()] == [getattr(EntryCall, f).offset for f in fields]


def test_a_c_program_runs_an_artifact(tmp_path: Path):
    """The program of docs/native.md: it maps the weights, loads the library, asks for memory, and runs."""
    model = mlp()
    occ.build(model, "cpu", out=str(tmp_path / "mlp"), folder=True)
    offsets = [w["offset"] for w in json.loads((tmp_path / "mlp/manifest.json").read_text())["weights"]]
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    x.tofile(tmp_path / "x.bin")
    program = (Path(__file__).parent / "run_model.c").read_text().replace("@HEADER@", c_header())
    (tmp_path / "run.c").write_text(program)
    subprocess.run([compiler(), "-x", "c", "run.c", "-o", "run", "-ldl"], cwd=tmp_path, check=True)
    subprocess.run(["./run", *map(str, offsets)], cwd=tmp_path, check=True, timeout=60)
    got = np.fromfile(tmp_path / "y.bin", np.float32).reshape(3, 4)
    np.testing.assert_allclose(got, reference(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


def c_header() -> str:
    """The block of C in docs/native.md that declares the interface."""
    page = (Path(__file__).parents[2] / "docs/native.md").read_text()
    return page.split("```c\n", 1)[1].split("```", 1)[0]


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("g++")
    assert found is not None, "target cpu needs a C++ compiler anyway"
    return found


def test_another_version_of_the_interface_is_refused():
    session = occ.compile(mlp(), "cpu-jit")
    call = EntryCall(abi=99)
    assert session.engine._native.library.dll.occ_model_run(ctypes.byref(call)) == 6
