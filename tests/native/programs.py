"""C programs without Python, and a model with symbolic sizes and three outputs for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

THREE = """g (float[n, 8] x) => (float[n, 8] probabilities, float[n] largest, float[n, 8] exp) {
    probabilities = Softmax(x)
    one = Constant <value = int64[1] {1}> ()
    largest = ReduceMax <keepdims = 0> (x, one)
    exp = Exp(x)
}"""
NO_PYTHON = {"PATH": "/nowhere", "OCC_NUM_THREADS": "2"}


def said_by(program: str | Path, *args: str, env: dict[str, str] | None = None) -> str:
    ran = subprocess.run([str(program), *args], capture_output=True, text=True, env=env or NO_PYTHON, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
