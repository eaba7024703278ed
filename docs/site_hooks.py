"""Hooks of mkdocs: makes the pages whole without a network, and lists the versions next to each other."""

import json
import re
from pathlib import Path
from typing import Any

from occ.runtime.version import occ_version

# The theme lets search work from files through a small script that it takes from the network.
_REMOTE = re.compile(r'"https://unpkg\.com/iframe-worker/shim"')


# A link whose text is the name of a file, as it is best read in a repository.
_PAGE = re.compile(r"\[`?[\w/.-]+\.md`?\]\(([\w/.-]+\.md)(#[\w-]+)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The text of a page with links to others by their titles."""
    folder = Path(page.file.abs_src_path).parent

    def titled(found: re.Match[str]) -> str:
        heading = re.search(r"^# (.+)$", (folder / found[1]).read_text("utf-8"), re.M)
        return f"[{heading[1]}]({found[1]}{found[2] or ''})" if heading else found[0]

    return _PAGE.sub(titled, markdown)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """The page with a script that is next to the others."""
    here = "../" * page.url.count("/")
    return _REMOTE.sub(f'"{here}assets/iframe-worker.js"', output)


def on_post_template(output: str, *, template_name: str, config: Any) -> str:
    """The page for what is not found, which has no place of its own."""
    return _REMOTE.sub('"assets/iframe-worker.js"', output)


def on_post_build(config: Any) -> None:
    """List the versions where a site is built into a folder of its version's name; the page in front leads to this one.

    `versions.json` is what the theme's choice of a version reads, in the form of mike's. Folders of other versions stay.
    """
    here = Path(config["site_dir"])
    if here.name != occ_version():
        return
    others = [p.name for p in here.parent.iterdir() if (p / "index.html").is_file() and p != here]
    rows = [{"version": v, "title": v, "aliases": []} for v in (here.name, *sorted(others, reverse=True))]
    (here.parent / "versions.json").write_text(json.dumps(rows, indent=1) + "\n")
    (here.parent / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={here.name}/index.html"><a href="{here.name}/index.html">occ</a>\n'
    )
