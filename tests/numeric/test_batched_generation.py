"""Texts of different lengths in one run: the tokens of each alone, who joins and leaves, and what files cannot do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import WORDS, Reference, decoder, in_blocks, masked, merged

import occ
from occ.cli.generate import command
from occ.generation.batch_scheduler import BatchScheduler
from occ.generation.requests import GenerationBatch

_ROUNDING = 2e-3  # of logits up to 16: alone they are within 5e-4 of onnxruntime
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], list(range(20)), [5, 5], [9, 8, 7, 6, 5]]
KINDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "grouped": decoder,
    "window": lambda: decoder(local_window_size=6),
    "capped": lambda: decoder(softcap=2.0),
    "states": lambda: decoder(taps=4),
    "masked": masked,
}


def _opened(model: onnx.ModelProto, path: Path, target: str = "cpu-jit", **how: Any) -> occ.LanguageModel:
    onnx.save(model, path / "model.onnx")
    return occ.LanguageModel(path, threads=1, **{"capacity": 48} | how, target=target)


# How texts are batched is the same on all targets, and the attention of each kind has tests of its own on `cpu`.
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        pytest.param(kind, target, marks=[pytest.mark.more] if target == "cpu" and kind != "grouped" else [])
        for kind in KINDS
        for target in ("cpu", "cpu-jit")
    ],
)
def test_each_text_has_the_tokens_that_it_has_alone(kind: str, target: str, tmp_path: Path) -> None:
    model = KINDS[kind]()
    lm, reference = _opened(model, tmp_path, target), Reference(model)
    want = [reference.greedy(p, 16) for p in PROMPTS]
    for size in (2, 5, 8):
        assert lm.generate(PROMPTS, 16, batch_size=size) == want


def test_products_in_blocks_of_several_texts(tmp_path: Path) -> None:
    model = in_blocks(decoder(), 0)
    lm, reference = _opened(model, tmp_path, "cpu"), Reference(model)
    assert lm.generate(PROMPTS, 12) == [reference.greedy(p, 12) for p in PROMPTS]


def test_merged_decoders_continue_several_texts(tmp_path: Path) -> None:
    onnx.save(merged(decoder()), tmp_path / "decoder_model_merged.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=48, target="cpu-jit")
    assert lm.generate(PROMPTS, 6, batch_size=3) == lm.generate(PROMPTS, 6, batch_size=1)


def test_a_bias_of_the_file_is_added_where_a_text_is(tmp_path: Path) -> None:
    model = decoder()
    bias = np.random.default_rng(1).normal(size=(1, 1, 1, 1)).astype(np.float32).repeat(4, 1)
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend(["", "bias"])
    lm = _opened(model, tmp_path)
    assert lm.generate(PROMPTS, 6, batch_size=3) == lm.generate(PROMPTS, 6, batch_size=1)


@pytest.mark.parametrize("kind", ["grouped", "states", "masked"])
def test_texts_join_and_leave_at_any_time(kind: str, tmp_path: Path) -> None:
    """Of 60 texts some leave early; the places of their caches are given up and used again."""
    model = KINDS[kind]()
    lm, reference, rng = _opened(model, tmp_path), Reference(model), np.random.default_rng(2)
    running, ended = GenerationBatch(lm.batch()), []
    for k in range(60):
        prompt = rng.integers(0, WORDS, rng.integers(1, 30)).tolist()
        w = lm.request(prompt, int(rng.integers(2, 18)), texts=False)
        with lm.decoders.holding(prompt) as held:
            w.take(held.continue_with(prompt))
            running.add(w, held)
        for _ in range(rng.integers(0, 5)):
            ended += running.step() if running.requests else []
        if len(running.requests) > 5 or k % 7 == 0:
            w = running.requests[int(rng.integers(len(running.requests)))]
            w.decoder = lm.decoders.take([])
            running.remove(w)
            lm.decoders.give_back(w.decoder)
            ended.append(w)
            assert w.decoder.tokens == w.tokens[:-1]
            again = w.decoder.continue_with(w.tokens)  # it goes on where the text was left
            np.testing.assert_allclose(again, reference.logits(w.tokens)[-1], atol=_ROUNDING)
    assert len(ended) > 40
    for w in ended:
        logits, new = reference.logits(w.tokens), w.whole()
        for row, token in zip(logits[-len(new) - 1 : -1], new, strict=True):
            assert row.max() - row[token] < _ROUNDING


def test_chance_stops_and_errors_are_those_of_each_text(tmp_path: Path) -> None:
    lm = _opened(decoder(), tmp_path)
    how: dict[str, Any] = {"do_sample": True, "temperature": 2.0, "seed": 3, "stop": [11, 23]}
    assert lm.generate(PROMPTS, 20, **how) == [lm.generate(p, 20, **how) for p in PROMPTS]
    assert lm.generate(PROMPTS, 0) == [[]] * len(PROMPTS)
    long = [*PROMPTS, list(range(46))]  # the caches of the last are full after two tokens
    assert lm.generate(long, 30) == [lm.generate(p, 30) for p in long]
    with pytest.raises(occ.RunError, match="batch_size"):
        lm.generate(PROMPTS, 4, batch_size=0)
    with pytest.raises(occ.RunError, match=f"token {WORDS}"):
        lm.generate([[1], [WORDS]], 4)


def test_what_a_file_cannot_do_is_an_error_where_it_is_asked_for(tmp_path: Path) -> None:
    model = masked(positions=False)
    lm, reference = _opened(model, tmp_path), Reference(model)
    with pytest.raises(occ.RunError, match="position_ids"):
        lm.generate(PROMPTS, 6, batch_size=4)
    assert lm.generate(PROMPTS, 6) == [reference.greedy(p, 6) for p in PROMPTS]
    assert lm.generate([3, 1], 4, num_beams=2) is not None  # these have one length


def test_texts_of_many_threads_share_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = _opened(decoder(), tmp_path)
    shared, want = BatchScheduler(lm), [lm.generate(p, 20) for p in PROMPTS]
    rows: list[int] = []
    step, got, ready = GenerationBatch.step, dict[int, list[int]](), threading.Barrier(len(PROMPTS))

    def counted(self: GenerationBatch) -> Any:
        rows.append(len(self.requests))
        return step(self)

    def write(k: int) -> None:
        pieces = shared.stream(PROMPTS[k], 20)
        ready.wait()
        got[k] = list(pieces)

    monkeypatch.setattr(GenerationBatch, "step", counted)
    threads = [threading.Thread(target=write, args=(k,)) for k in range(len(PROMPTS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [got[k] for k in range(len(PROMPTS))] == want
    assert sum(rows) == 19 * len(PROMPTS)
    assert len(rows) < sum(rows)


def test_who_leaves_does_not_disturb_and_who_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = _opened(decoder(), tmp_path)
    shared, want = BatchScheduler(lm), lm.generate(PROMPTS[0], 20)
    leaving, staying = shared.stream(PROMPTS[1], 40), shared.stream(PROMPTS[0], 20)
    got = [next(staying)]
    next(leaving)
    leaving.close()
    assert [*got, *staying] == want

    def failing(*_: object) -> Any:
        raise MemoryError

    with monkeypatch.context() as m:
        m.setattr(GenerationBatch, "step", failing)
        m.setattr(lm, "batch", failing)  # nor is there memory for those that follow
        for _ in range(2):
            with pytest.raises(MemoryError):
                list(shared.stream(PROMPTS[0], 20))
    assert list(shared.stream(PROMPTS[0], 20)) == want
    assert len(lm.decoders.idle) <= 3


def test_the_command_writes_a_line_for_each_prompt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lm = _opened(decoder(), tmp_path, "cpu")
    given = [x for p in PROMPTS[:3] for x in ("--tokens", ",".join(map(str, p)))]
    command.main(
        [str(tmp_path), *given, "--greedy", "--max-new-tokens", "6", "--capacity", "48"], standalone_mode=False
    )
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [x["prompt"] for x in lines] == PROMPTS[:3]
    assert [x["tokens"] for x in lines] == lm.generate(PROMPTS[:3], 6)
