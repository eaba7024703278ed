"""The Python of docs/language-models.md runs, on a small decoder."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "language-models.md"

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "numeric"))
    from decoders import decoder

    onnx.save(decoder(), tmp_path / "model.onnx")
    return tmp_path


def test_the_python_of_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"folder": folder}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(capsys.readouterr().out.split()) == 16 + 3 * 8
    assert names["logits"].shape[-1] == 50  # pyright: ignore[reportAttributeAccessIssue]
