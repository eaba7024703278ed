"""Every step of docs/tutorial-ascend.md, in order: none needs a device."""

from __future__ import annotations

from pathlib import Path

from test_guides import blocks, run, shown, steps

ROOT = Path(__file__).parents[2]


def test_every_step_works_and_prints_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = 0
    for language, text in blocks((ROOT / "docs/tutorial-ascend.md").read_text()):
        assert language == "console"
        for command, expected in steps(text):
            status, output = run(command, tmp_path)
            assert status == 0, f"{command}\n{output}"
            assert shown(expected, output), f"{command}\nshown: {expected}\nprinted: {output}"
            ran += 1
    assert ran >= 8
