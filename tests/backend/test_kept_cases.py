"""The node cases that are kept in a file are those of `onnx`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import suite
from onnx.backend.test.case.test_case import TestCase


def bits(value: Any) -> Any:
    """Something that is equal for values of one type, dtype, shape and content only."""
    if isinstance(value, list | tuple):
        return type(value), [bits(v) for v in value]
    if isinstance(value, onnx.TensorProto | onnx.ModelProto | onnx.SequenceProto):
        return type(value), value.SerializeToString(deterministic=True)
    if isinstance(value, np.ndarray | np.generic):
        content = value.tolist() if value.dtype == object else value.tobytes()
        return type(value), value.dtype, value.shape, content
    assert value is None
    return value


def facts(case: TestCase) -> list[Any]:
    rest = {k: v for k, v in vars(case).items() if k not in ("model", "data_sets")}
    return [rest, bits(case.model), bits(case.data_sets)]


def test_they_are_made_once_and_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    some = suite.node_cases()[::50]
    monkeypatch.setattr(suite, "make_cases", lambda: some)
    kept = suite.node_cases.__wrapped__
    assert [facts(c) for c in kept(tmp_path)] == [facts(c) for c in some]
    monkeypatch.setattr(suite, "make_cases", lambda: pytest.fail("made again"))
    assert [facts(c) for c in kept(tmp_path)] == [facts(c) for c in some]


def test_another_version_makes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept, some = suite.node_cases.__wrapped__, suite.node_cases()
    monkeypatch.setattr(suite, "make_cases", lambda: some[:1])
    assert len(kept(tmp_path)) == 1
    monkeypatch.setattr(onnx, "__version__", "0")
    monkeypatch.setattr(suite, "make_cases", lambda: some[:2])
    assert len(kept(tmp_path)) == 2


@pytest.mark.slow
def test_all_are_those_of_onnx():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = suite.make_cases()
    kept = suite.node_cases()
    assert len(made) == len(kept) > 1800
    assert [c.name for c in made if facts(c) not in [facts(k) for k in kept if k.name == c.name]] == []
