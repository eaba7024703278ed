"""The code of docs/torch.md, in order, in one process: skipped where torch or transformers is not installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/torch.md").read_text()
pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


def test_the_page_works_from_start_to_end(tmp_path: Path) -> None:
    for package in ("torch", "onnxscript", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    code = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "resnet.occ").is_file()
    head, _, last = done.stdout.partition("3 graphs, 0 breaks")
    graphs = re.findall(r"^ +\d+ nodes +[\d.]+ s  (\w+)", last, re.M)
    assert head.startswith("1 graphs, 0 breaks")
    assert graphs == ["occ"] * 3, done.stdout
