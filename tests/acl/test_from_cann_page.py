"""Every command of docs/ascend-from-cann.md, in order, on the stand-ins for the toolkit and the device."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ascend_standin import Standin

pytestmark = pytest.mark.toolchain
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ascend-from-cann.md").read_text("utf-8")
NEEDS = ("", "toolkit", "device")


def rows() -> list[tuple[str, list[str], str]]:
    """(what one did, the commands of occ, what they need) of the tables."""
    found = []
    for line in PAGE.splitlines():
        if not line.startswith("| ") or line.startswith(("| you did", "|---")):
            continue
        did, now, needs = (
            (cell.strip() for cell in line.strip("|").split(" | ")) if line.count(" | ") == 2 else _empty_last(line)
        )
        found.append((did, [c for c in re.findall(r"`(occ [^`]*)`", now) if "FOLDER" not in c], needs))
    return found


def _empty_last(line: str) -> tuple[str, str, str]:
    did, now = (cell.strip() for cell in line.strip().removesuffix("|").strip("|").split(" | ")[:2])
    return did, now.rstrip("| "), ""


def test_tables_say_what_a_command_needs():
    assert len(rows()) > 25
    assert {needs for _, _, needs in rows()} == set(NEEDS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (command,) = re.findall(r"^\$ python -c (.*)$", PAGE, re.M)
    subprocess.run([sys.executable, "-c", *shlex.split(command)], check=True, cwd=tmp_path)
    return tmp_path


def test_every_command_works(toolkit: Standin, folder: Path, occ_cli):
    """Those that need a device run on the stand-in; those that need nothing, before there is one."""
    pytest.importorskip("onnxruntime.quantization", reason="onnxruntime has no quantisation")
    toolkit.machine("Ascend310P3")
    ran = 0
    for _, commands, needs in rows():
        for command in commands:
            device = toolkit.count("aclmdlExecute") + toolkit.count("aclmdlExecuteAsync")
            done = occ_cli(*shlex.split(command)[1:])
            assert done.code == 0, f"{command}\n{done.out}\n{done.err}"
            used = toolkit.count("aclmdlExecute") + toolkit.count("aclmdlExecuteAsync") > device
            assert used == (needs == "device"), command
            ran += 1
    assert ran >= 25
    assert Path("digits.om").is_file()
    assert Path("out/digit.npy").is_file()
    np.testing.assert_allclose(np.load("out/digit.npy"), np.load("simulated/digit.npy"), atol=1e-6)
    assert toolkit.count("aclprofStart") == 1


def test_what_the_page_says_of_the_graph_of_integers(toolkit: Standin, folder: Path, occ_cli):
    pytest.importorskip("onnxruntime.quantization", reason="onnxruntime has no quantisation")
    (command,) = re.findall(r"`(occ quantize \S+ -t ascend310p --calibrate \S+ -o int8.onnx)`", PAGE)
    assert occ_cli(*shlex.split(command)[1:]).code == 0
    graph = occ_cli("dump", "int8.onnx", "-t", "ascend310p", "--dim", "N=1", "--stage", "ge").out
    assert "AscendQuant" in graph
    assert "AscendDequant" in graph
