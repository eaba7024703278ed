"""Progress on a terminal has counts while kernels are compiled."""

from __future__ import annotations

from pathlib import Path
from threading import Event

from occ.compiler.codegen_halide import progress


def test_files_are_counted_as_they_come(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    said: list[str] = []
    second = Event()

    def tell(text: str) -> None:
        said.append(text)
        if text == "kernel 2 of 3":
            second.set()

    with progress.counted(tmp_path, 3, "kernel", tell):
        (tmp_path / "first.o").touch()
        assert second.wait(300)
    assert said[0] == "kernel 1 of 3"
    assert said[-1] == "kernel 2 of 3"
