"""`echo` with `logprobs`: the server gives the probabilities of the prompt's tokens, as evaluation tools ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai_server import Served

import occ

PROMPT = "the quick brown fox jumps over the lazy dog and on"  # longer than one run scores


@pytest.fixture(scope="module")
def want(lm: occ.LanguageModel) -> np.ndarray:
    """The log-probabilities after each token of the prompt, f64 `[tokens, vocabulary]`, by onnxruntime."""
    ort = pytest.importorskip("onnxruntime")
    assert lm.tokenizer is not None
    path = Path(str(lm.tokenizer.source)).parent / "model.onnx"
    session = ort.InferenceSession(path)
    ids = np.array([lm.tokens_of(PROMPT)])
    given: dict[str, Any] = {}
    known = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None]}
    for i in session.get_inputs():
        empty = [d if isinstance(d, int) else int(k == 0) for k, d in enumerate(i.shape)]
        given[i.name] = known.get(i.name, np.zeros(empty, np.float32))
    logits = session.run(["logits"], given)[0][0].astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_prompts_are_scored(lm: occ.LanguageModel, client: Any, want: np.ndarray) -> None:
    ids = lm.tokens_of(PROMPT)
    how = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "echo": True}
    for _ in range(2):  # also with the prompt in a cache
        got = client.completions.create(max_tokens=0, logprobs=2, **how)
        (choice,) = got.choices
        assert (choice.text, choice.finish_reason) == (PROMPT, "length")
        assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(ids), 0)
        scores = choice.logprobs
        assert scores.tokens == list(PROMPT)
        assert scores.text_offset == list(range(len(PROMPT)))
        assert scores.token_logprobs[0] is None
        assert scores.top_logprobs[0] is None
        assert [len(t) for t in scores.top_logprobs[1:]] == [2] * (len(ids) - 1)
        rows = want[np.arange(len(ids) - 1), ids[1:]]
        np.testing.assert_allclose(scores.token_logprobs[1:], rows, rtol=1e-4, atol=1e-4)
        best = [max(t.values()) for t in scores.top_logprobs[1:]]
        np.testing.assert_allclose(best, want[:-1].max(-1), rtol=1e-4, atol=1e-4)


def test_prompt_and_text_are_scored_together(lm: occ.LanguageModel, client: Any) -> None:
    """Several prompts and choices, whole and streamed."""
    how = {"model": "tiny", "prompt": ["ab", PROMPT], "n": 2, "max_tokens": 3, "logprobs": 1, "seed": 5, "echo": True}
    whole = client.completions.create(**how).choices
    prompts = ["ab", "ab", PROMPT, PROMPT]
    assert [c.text[: len(p)] for c, p in zip(whole, prompts, strict=True)] == prompts
    assert len({c.text for c in whole[2:]}) == 2
    parts: dict[int, list[Any]] = {k: [] for k in range(4)}
    texts = dict.fromkeys(parts, "")
    for chunk in client.completions.create(stream=True, **how):
        for c in chunk.choices:
            texts[c.index] += c.text
            parts[c.index] += [] if c.logprobs is None else [c.logprobs]
    for k, c in enumerate(whole):
        assert texts[k] == c.text
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [x for p in parts[k] for x in getattr(p, name)] == getattr(c.logprobs, name), name
        assert len(c.logprobs.tokens) == len(lm.tokens_of(PROMPT if k > 1 else "ab")) + 3
        assert [s is None for s in c.logprobs.token_logprobs] == [True] + [False] * (len(c.logprobs.tokens) - 1)


def test_choices_without_new_tokens_have_the_prompts_scores(client: Any) -> None:
    how = {"model": "tiny", "prompt": "abcd", "n": 2, "max_tokens": 0, "logprobs": 0, "echo": True}
    first, second = client.completions.create(**how).choices
    assert first.logprobs.token_logprobs == second.logprobs.token_logprobs
    streamed = [c for chunk in client.completions.create(stream=True, **how) for c in chunk.choices if c.text]
    assert [(c.index, c.text, len(c.logprobs.tokens)) for c in streamed] == [(0, "abcd", 4), (1, "abcd", 4)]


def test_a_text_is_the_same_after_a_scored_prompt(lm: occ.LanguageModel, client: Any, served: Served) -> None:
    got = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=0, logprobs=0, echo=True)
    assert got.choices[0].text == PROMPT + lm.generate(PROMPT, 8)
    assert served.metric("occ_prompt_tokens_total") >= len(PROMPT)


@pytest.mark.parametrize("count", [0, 4])
def test_the_language_model_scores_prompts_by_itself(lm: occ.LanguageModel, want: np.ndarray, count: int) -> None:
    from occ.generation.requests import generate_one

    request = lm.request(PROMPT, count, top_logprobs=1, scores_prompt=True)
    text = "".join(generate_one(request, lm.decoders))
    assert text == lm.generate(PROMPT, count)
    assert [p.token for p in request.prompt_logprobs] == lm.tokens_of(PROMPT)
    best = [p.top[0][0] for p in request.prompt_logprobs[1:]]
    assert best == want[:-1].argmax(-1).tolist()


@pytest.mark.parametrize("several", [False, True])
def test_32_tokens_of_a_prompt_are_scored_in_a_run(
    lm: occ.LanguageModel, want: np.ndarray, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from occ.generation.decoder import Decoder
    from occ.generation.requests import generate_one

    assert lm.tokenizer is not None
    folder = Path(str(lm.tokenizer.source)).parent
    scoring = occ.LanguageModel(folder, 1, target="cpu-jit", several=several, score_prompts=True)
    runs, append = list[int](), Decoder._append
    monkeypatch.setattr(Decoder, "_append", lambda self, ids: runs.append(len(ids)) or append(self, ids))
    request = scoring.request(PROMPT, 4, top_logprobs=0, scores_prompt=True)
    ids, text = scoring.tokens_of(PROMPT), "".join(generate_one(request, scoring.decoders))
    assert runs[:2] == [32, len(ids) - 32]
    got = [p.logprob or 0.0 for p in request.prompt_logprobs[1:]]  # only the first token has none
    np.testing.assert_allclose(got, want[np.arange(len(ids) - 1), ids[1:]], rtol=1e-4, atol=1e-4)
    assert text == lm.generate(PROMPT, 4)
    if several:
        texts = [PROMPT, PROMPT[:9], PROMPT[:40]]
        assert scoring.generate(texts, 6) == [lm.generate(t, 6) for t in texts]
