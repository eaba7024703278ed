"""The application that gunicorn serves in tests: one session for all workers, loaded and run before they are forked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import occ

session = occ.load(os.environ["OCC_TEST_MODEL"], threads=2)
x = np.load(os.environ["OCC_TEST_INPUT"])
expected = session.run({"x": x})["y"]


def app(_: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], Any]) -> Iterable[bytes]:
    """Answers with its process, and whether its run was right."""
    right = np.array_equal(session.run({"x": x})["y"], expected)
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {right}".encode()]
