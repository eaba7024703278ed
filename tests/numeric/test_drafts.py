"""Drafts that one run verifies: the texts of the model alone, from fewer runs."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import WORDS, Reference, decoder, in_blocks, tokens_of_runs

import occ
from occ.compiler.ir.te.expr import Axis
from occ.compiler.passes.methods.attention.split_kv import APART, TOGETHER, _Keys
from occ.generation.drafts import NgramDrafts
from occ.generation.names import KEY_BLOCK
from occ.generation.requests import GenerationRequest

TURN = [3, 1, 4, 1, 5, 9, 2, 6]
PROMPT = TURN * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    onnx.save(decoder(), path / "model.onnx")
    return path


@pytest.fixture(scope="module")
def plain(folder: Path) -> occ.LanguageModel:
    return occ.LanguageModel(folder, threads=1, capacity=120, target="cpu-jit")


@pytest.fixture(scope="module")
def drafted(folder: Path) -> occ.LanguageModel:
    return occ.LanguageModel(folder, threads=1, capacity=120, target="cpu-jit", draft="ngram")


def test_ngrams_are_found_where_they_were_last() -> None:
    drafts = NgramDrafts()
    assert drafts.propose([1, 2, 3], 3) == []
    assert drafts.propose([1, 2, 3, 9, 1, 2], 3) == [3, 9, 1]
    assert drafts.propose([1, 2, 3, 9, 1, 2, 7, 1, 2], 2) == [7, 1]  # the last place where it stood
    assert NgramDrafts().propose([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]  # a loop goes on
    assert NgramDrafts().propose([4, 4, 4], 4) == [4, 4, 4, 4]
    assert NgramDrafts().propose([], 4) == NgramDrafts().propose([1], 4) == []


class Given:
    """Guesses from a text, of which every fifth token is changed."""

    def __init__(self, text: list[int]) -> None:
        self.text = [(t + 1) % WORDS if k % 5 == 4 else t for k, t in enumerate(text)]

    def propose(self, tokens: Any, count: int) -> list[int]:
        return self.text[len(tokens) : len(tokens) + count]


@pytest.mark.parametrize("last_alone", [False, True])
def test_greedy_tokens_are_those_of_onnxruntime(
    last_alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file itself gives the logits of the last token alone."""
    made = decoder()
    reference = Reference(made)
    onnx.save(of_last(made) if last_alone else made, tmp_path / "model.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=120, target="cpu-jit", draft="ngram")
    for ids in (PROMPT, [7], list(range(40))):
        want = reference.greedy(ids, 48)
        assert lm.generate(ids, max_new_tokens=48) == want
        monkeypatch.setattr(lm, "_new_drafts", partial(Given, [*ids, *want]))
        sizes = tokens_of_runs(lm, monkeypatch)
        assert lm.generate(ids, max_new_tokens=48) == want
        assert max(sizes[1:]) == 4
        assert len(sizes) < 26
        assert lm.decoders.idle[-1].tokens == [*ids, *want[:-1]]  # nothing is held of what was guessed wrong
        monkeypatch.undo()


def test_the_length_of_chunks_of_keys_changes_only_where_no_run_passes() -> None:
    for how in (APART, TOGETHER):
        sizes = [_Keys.of(Axis("k", n), how).within.extent for n in range(1, 6000)]
        assert {n % KEY_BLOCK for n, (one, other) in enumerate(pairwise(sizes), 1) if one != other} == {0}


def test_logits_with_drafts_are_those_without_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where activations are rounded to 8 bits, the least difference in attention would be one of 1 % in a logit."""
    onnx.save(in_blocks(decoder(), 4), tmp_path / "model.onnx")
    how: dict[str, Any] = {"threads": 1, "capacity": 160, "target": "cpu"}
    lm = occ.LanguageModel(tmp_path, **how, draft="ngram")
    lm.generate(PROMPT, 1)  # every other text finds the prompt in the caches
    seen: list[np.ndarray] = []
    take = GenerationRequest.take
    monkeypatch.setattr(GenerationRequest, "take", lambda self, row: (seen.append(row.copy()), take(self, row))[1])
    monkeypatch.setattr(lm, "_new_drafts", lambda: Given([]))
    text = lm.generate(PROMPT, 130)
    alone = seen[:]
    seen.clear()
    for phase in range(4):  # runs begin at other positions
        guesses = Given([])
        guesses.text = [*PROMPT, *text]
        for k in range(phase):
            guesses.text[len(PROMPT) + 1 + k] ^= 1
        monkeypatch.setattr(lm, "_new_drafts", lambda guesses=guesses: guesses)
        sizes = tokens_of_runs(lm, monkeypatch)
        assert lm.generate(PROMPT, 130) == text
        assert max(sizes[1:]) == 4
        np.testing.assert_array_equal(seen, alone)
        seen.clear()


def of_last(made: onnx.ModelProto) -> onnx.ModelProto:
    """The decoder with a slice of the last row before its head, as exporters write it."""
    made = onnx.ModelProto.FromString(made.SerializeToString())
    head = made.graph.node[-1]
    bounds = [onnx.numpy_helper.from_array(np.array([v], np.int64), f"cut{v}") for v in (-1, 2**63 - 1, 1)]
    made.graph.initializer.extend(bounds)
    names = [b.name for b in bounds]
    cut = onnx.helper.make_node("Slice", [head.input[0], *names, names[-1]], ["last_row"])
    head.input[0] = "last_row"
    made.graph.node.insert(len(made.graph.node) - 1, cut)
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "some"
    return made


@pytest.mark.parametrize(
    "how", [{"temperature": 0.3, "top_p": 0.9}, {"temperature": 1.0, "repetition_penalty": 1.3}, {"top_k": 3}]
)
def test_sampled_texts_are_those_without_drafts(
    how: dict[str, float], plain: occ.LanguageModel, drafted: occ.LanguageModel
) -> None:
    for seed in range(6):
        one, other = (m.generate(PROMPT, 40, do_sample=True, seed=seed, **how) for m in (plain, drafted))
        assert one == other


def test_what_is_sampled_has_the_probabilities_of_the_model(
    plain: occ.LanguageModel, drafted: occ.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 2,000 seeds the second new token is as frequent with drafts as without, whichever are accepted."""
    with plain.decoders.holding(PROMPT) as d:
        best = d.continue_with(PROMPT).argsort()[::-1][:3].tolist()
    monkeypatch.setattr(drafted, "_new_drafts", lambda: Given([*PROMPT, *best]))
    counts = []
    for lm, seeds in ((plain, range(1000)), (drafted, range(1000, 2000))):
        found = [lm.generate(PROMPT, 3, do_sample=True, temperature=1.5, seed=s)[2] for s in seeds]
        counts.append(np.bincount(found, minlength=WORDS))
    one, other = counts
    seen = one + other > 20
    statistic = float((((one - other) ** 2)[seen] / (one + other)[seen]).sum())
    assert statistic < 2.5 * seen.sum()  # of chi-square, whose mean is the number of words


def test_the_end_of_a_text_and_of_the_cache(drafted: occ.LanguageModel, plain: occ.LanguageModel) -> None:
    whole = plain.generate(PROMPT, 200)
    assert len(whole) == 120 - len(PROMPT)
    assert drafted.generate(PROMPT, 200) == whole
    for count in (1, 2, 3, 5):
        assert drafted.generate(PROMPT, count) == whole[:count]
    stop = whole[10]
    assert drafted.generate(PROMPT, 60, stop=[stop]) == whole[: whole.index(stop) + 1]


def test_a_smaller_model_guesses(folder: Path, plain: occ.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the model itself, all of whose guesses are right: a run returns four tokens, or ends at 32."""
    lm = occ.LanguageModel(folder, threads=1, capacity=120, target="cpu-jit", draft=folder)
    sizes = tokens_of_runs(lm, monkeypatch)
    assert lm.generate([7, 8], 41) == plain.generate([7, 8], 41)
    assert sizes == [2, *[4] * 7, 2, 4, 4, 2]


@pytest.mark.parametrize(
    ("made", "how", "message"),
    [
        (decoder(taps=3), {"draft": "ngram"}, "cannot remove rejected draft tokens"),
        (decoder(), {"draft": "ngram", "draft_tokens": 0}, "draft_tokens is 0"),
        (decoder(), {"draft": "ngram", "several": True}, "not supported for batches"),
        (decoder(), {"draft": "none"}, "none"),
    ],
)
def test_what_drafts_need(made: onnx.ModelProto, how: dict[str, Any], message: str, tmp_path: Path) -> None:
    onnx.save(made, tmp_path / "model.onnx")
    with pytest.raises(occ.RunError, match=message):
        occ.LanguageModel(tmp_path, threads=1, capacity=64, target="cpu-jit", **how)
