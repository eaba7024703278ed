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
