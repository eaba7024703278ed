"""The reference pages are those of the registries."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MADE = runpy.run_path(str(DOCS / "reference.py"))


@pytest.mark.parametrize("name", sorted(MADE["PAGES"]))
def test_page_is_up_to_date(name):
    assert (DOCS / "reference" / name).read_text() == MADE["page"](name), "run `make docs`"


def test_links_of_the_pages_lead_somewhere():
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
            if "://" not in target and "." in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_on_the_command_line_lists_every_command():
    from occ.cli import COMMANDS

    text = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    assert [name for name, what in COMMANDS.items() if f"| `occ {name}` | {what} |" not in text] == []
