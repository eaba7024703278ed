"""How much LLVM does for a kernel of `cpu-jit`: little for a small one that runs once, less at `-O1`, else all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of, reference

import occ
from occ.compiler.codegen_llvm import build as llvm
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.codegen_llvm.optimization_level import LEAST, QUICK, WHOLE, Effort
from occ.compiler.ir.te.function import TeFunc

SMALL = "g (float[3, 4] x) => (float[3, 4] y) { y = Softmax(x) }"
LARGE = "g (float[300, 40] x) => (float[300, 40] y) { y = Softmax(x) }"
SYMBOLIC = "g (float[n, 4] x) => (float[n, 4] y) { y = Softmax(x) }"
REPEATED = """g (float[4] start, float[3, 4] steps) => (float[4] last, float[3, 4] all) {
    last, all = Scan <num_scan_inputs: int = 1, body: graph = step (float[4] s, float[4] x) => (float[4] t, float[4] o) {
        a = Softmax(s)  t = Add(a, x)  o = Tanh(t)
    }> (start, steps)
}"""


@pytest.fixture
def efforts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Effort]:
    """How much LLVM does for each kernel that is compiled."""
    seen: list[Effort] = []
    compiled = llvm._compile

    def watched(f: TeFunc, to: CodeMachine, effort: Effort) -> bytes:
        seen.append(effort)
        return compiled(f, to, effort)

    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(llvm, "_compile", watched)
    return seen


def _right(model: onnx.ModelProto, options: Mapping[str, str]) -> None:
    session = occ.compile(model, "cpu-jit", options=dict(options))
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.standard_normal([d if isinstance(d, int) else 5 for d in i.shape], np.float32)
        for i in session.inputs
    }
    for found, expected in zip(session.run(inputs).values(), reference(model, inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("text", "expected"), [(SMALL, LEAST), (LARGE, WHOLE), (SYMBOLIC, WHOLE), (REPEATED, WHOLE)],
    ids=["small", "large", "symbolic", "repeated"],
)  # fmt: skip
def test_what_runs_once_and_is_small_gets_little(text: str, expected: Effort, efforts: list[Effort]) -> None:
    _right(model_of(text), {})
    assert efforts
    assert set(efforts) == {expected}


@pytest.mark.parametrize(("text", "expected"), [(SMALL, LEAST), (LARGE, QUICK), (SYMBOLIC, QUICK), (REPEATED, QUICK)])
def test_a_first_result_comes_soon(text: str, expected: Effort, efforts: list[Effort]) -> None:
    _right(model_of(text), {"optimize": "1"})
    assert set(efforts) == {expected}


def test_an_option_optimises_all(efforts: list[Effort]) -> None:
    _right(model_of(SMALL), {"llvm.optimize": "always", "optimize": "1"})
    assert set(efforts) == {WHOLE}


def test_each_has_keys_of_its_own(efforts: list[Effort]) -> None:
    _right(model_of(SMALL), {})
    _right(model_of(SMALL), {"llvm.optimize": "always"})
    assert set(efforts) == {LEAST, WHOLE}
