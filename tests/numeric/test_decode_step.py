"""Steps of one token as one bound call: the same logits as those of runs that check their arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import WORDS, decoder

import occ
from occ.generation.decode_step import DecodeStep
from occ.generation.decoder import Decoder
from occ.runtime.session import Session

IDS = np.random.default_rng(3).integers(0, WORDS, 40).tolist()


def session(folder: Path, taps: int = 0) -> Session:
    onnx.save(decoder(taps=taps), folder / "model.onnx")
    return occ.LanguageModel(folder).session


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return session(tmp_path_factory.mktemp("decoder"))


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens before each bound step from now on."""
    seen, call = list[int](), DecodeStep.__call__

    def counted(self: DecodeStep, token: int, done: int) -> np.ndarray:
        seen.append(done)
        return call(self, token, done)

    monkeypatch.setattr(DecodeStep, "__call__", counted)
    return seen


def test_steps_give_the_logits_of_runs(made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory grows with the text; a text may go back, and others come between."""
    seen = calls(monkeypatch)
    bound, other, runs = (Decoder(made, 64) for _ in range(3))
    monkeypatch.setattr(runs, "_step", lambda: None)
    for ids in ([IDS[:3], *([k] for k in IDS[3:30])], [IDS[30:34], [1], [2], [3]]):
        for part in ids:
            np.testing.assert_array_equal(bound.append(part), runs.append(part))
            other.append(part[:1])
        bound.trim(7)
        runs.trim(7)
    assert {*range(3, 30), 11, 12, 13} <= {*seen}
    held = bound.append([5])
    bound.append([6])
    runs.append([5])
    runs.trim(7)
    np.testing.assert_array_equal(held, runs.append([5]))  # later steps do not overwrite it


def test_observed_runs_are_not_bound(made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, times, text = calls(monkeypatch), list[int](), Decoder(made, 64)
    text.append(IDS[:4])
    made.engine.observer = lambda k, *_: times.append(k)  # pyright: ignore[reportAttributeAccessIssue]
    text.append([1])
    made.engine.observer = None  # pyright: ignore[reportAttributeAccessIssue]
    assert times
    assert not seen
    text.append([2])
    assert seen == [5]


def test_states_are_passed_from_run_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, text = calls(monkeypatch), Decoder(session(tmp_path, taps=4), 64)
    text.append(IDS[:4])
    text.append([1])
    assert not seen
