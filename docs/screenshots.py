"""`python docs/screenshots.py`: takes the pictures of the documentation again, in docs/assets, with a headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import occ

ROOT = Path(__file__).parents[1]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def picture(page: Path, out: Path, width: int, height: int) -> None:
    """A page as a PNG, drawn after its scripts have run.

    Raises:
        CalledProcessError: the browser failed.
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        sys.exit(f"none of {', '.join(NAMES)} is installed")
    command = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000",
        f"--window-size={width},{height}", f"--screenshot={out}", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        occ.report(ROOT / "examples" / "digits.onnx", page)
        picture(page, ROOT / "docs" / "assets" / "report.png", 1200, 800)


if __name__ == "__main__":
    main()
