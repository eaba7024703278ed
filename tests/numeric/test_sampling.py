"""The sampler against transformers' logits processors where those are installed, and against sorting everything where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import occ
from occ.generation import sampling
from occ.generation.candidates import draw, leading, with_greatest
from occ.generation.compiled_draw import CompiledDraw
from occ.generation.sampling import Sampler, Sampling


def shares(logits: np.ndarray, count: int = 4000, **how: Any) -> np.ndarray:
    sampler = Sampler(Sampling(do_sample=True, **how))
    return np.bincount([sampler.choose(logits) for _ in range(count)], minlength=len(logits)) / count


def test_tokens_are_drawn_by_their_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    for how, want in (
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.9}, [0.526, 0.316, 0.158, 0]),
        ({"min_p": 0.2}, [0.526, 0.316, 0.158, 0]),
        ({"typical_p": 0.25}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, np.array([25, 9, 2.25, 0.25]) / 36.5),
        ({"logit_bias": {0: -np.inf, 3: np.log(3)}}, [0, 0.5, 0.25, 0.25]),
    ):
        np.testing.assert_allclose(shares(logits, **how), want, atol=0.03, err_msg=str(how))


def test_a_large_vocabulary_is_drawn_from_by_its_probabilities() -> None:
    """More than a block of weights, so that the draw takes both of its steps."""
    logits = np.full(5000, -20, np.float32)
    logits[[3, 1023, 1024, 4999]] = np.log([0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(shares(logits)[[3, 1023, 1024, 4999]], [0.4, 0.3, 0.2, 0.1], atol=0.03)


def test_penalties_and_biases_change_what_is_most_probable() -> None:
    logits = np.array([3.0, 2.0, -1.0], np.float32)
    assert Sampler(Sampling(repetition_penalty=10), [0]).choose(logits) == 1
    sampler = Sampler(Sampling(presence_penalty=0.4, frequency_penalty=0.4), [0, 0, 0])
    chosen = []
    for _ in range(4):  # the prompt does not count: 3.0, then 2.2, then 1.8 against 2.0, then 1.8 against 1.2
        chosen.append(sampler.choose(logits))
        sampler.append(chosen[-1])
    assert chosen == [0, 0, 1, 0]
    assert Sampler(Sampling(logit_bias={2: 5.0})).choose(logits) == 2
    assert logits.tolist() == [3, 2, -1], "what the model gave is not changed"


def test_bad_words_do_not_follow_what_they_follow() -> None:
    logits, sampler = np.array([1.0, 2.0, 3.0], np.float32), Sampler(Sampling(bad_words_ids=[[2], [0, 1]]), [0])
    assert sampler.choose(logits) == 0
    sampler.append(2)
    assert sampler.choose(logits) == 1


def test_a_mask_of_a_grammar_rules_tokens_out() -> None:
    logits, allowed = np.array([1.0, 2.0, 3.0], np.float32), np.array([True, True, False])
    assert Sampler(Sampling()).choose(logits, allowed) == 1
    with pytest.raises(occ.RunError, match="every token is banned"):
        Sampler(Sampling()).choose(logits, np.zeros(3, np.bool_))


def test_logits_that_are_no_numbers_are_an_error() -> None:
    for bad in ([1.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf]):
        for how in (Sampling(), Sampling(do_sample=True)):
            with pytest.raises(occ.RunError, match="not numbers"):
                Sampler(how).choose(np.array(bad, np.float32))
    assert Sampler(Sampling(do_sample=True)).choose(np.array([-np.inf, 0.0], np.float32)) == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"min_p": 1.5}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"logit_bias": {1: 1e300}}, "logit_bias"),
        ({"temperature": 1e300}, "temperature"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"bad_words_ids": [[]]}, "bad_words_ids"),
    ],
)
def test_settings_that_make_no_sense_are_errors(how: dict[str, Any], said: str) -> None:
    with pytest.raises(occ.RunError, match=said):
        Sampling(**how)


@pytest.mark.parametrize("how", [{"min_p": 1e-300}, {"temperature": 1e-300}, {"top_p": 1e-300}, {"typical_p": 1e-300}])
def test_settings_near_zero_choose_without_a_warning(how: dict[str, Any]) -> None:
    sampler = Sampler(Sampling(do_sample=True, **how))
    assert sampler.choose(np.array([-200.0, 50.0, -np.inf], np.float32)) == 1


SCORES = st.lists(st.sampled_from([-np.inf, -3.0, -1.5, -1.0, -0.5, 0.0]), min_size=1, max_size=400)


@given(SCORES, st.integers(1, 500), st.integers(0, 1 << 30))
def test_the_greatest_scores_are_those_of_a_sort(scores: list[float], count: int, seed: int) -> None:
    x = np.array(scores, np.float32)
    np.random.default_rng(seed).shuffle(x)
    order = np.argsort(-x, kind="stable")
    want = order if count >= len(x) else order[x[order] >= x[order[count - 1]]]
    assert with_greatest(x, count).tolist() == want.tolist()


@pytest.mark.parametrize("spread", [0.01, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 1.0])
def test_the_leading_mass_is_that_of_a_sort(spread: float, share: float) -> None:
    rng = np.random.default_rng(0)
    for size in (1, 7, 300, 5000, 40_000):
        x = (rng.normal(size=size) * spread).astype(np.float32)
        x[rng.random(size) < 0.1] = -np.inf
        x[0] = 0
        x -= x.max()
        weights = np.exp(x)
        order = np.argsort(-x, kind="stable")
        mass = np.cumsum(weights[order], dtype=np.float64)
        found = leading(x, weights, share)
        got = weights[found].sum(dtype=np.float64)
        assert got >= share * mass[-1] * (1 - 1e-6)
        assert got - weights[found].min() <= share * mass[-1] * (1 + 1e-6), "one token fewer is too few"
        assert x[found].min() >= x[order[len(found) - 1]], "no greater score is left out"


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("words", [1, 255, 257, 5000])
def test_a_draw_is_that_of_the_cumulative_sum_and_in_the_nucleus(words: int, share: float) -> None:
    rng = np.random.default_rng(words)
    for spread in (0.01, 0.5, 3.0):
        logits = np.round(rng.normal(size=words) * spread, 1).astype(np.float32)  # many are equal
        logits[rng.random(words) < 0.1] = -np.inf
        logits[0] = 0
        weights = np.exp((logits - logits.max()) / 2, dtype=np.float64)
        nucleus = set(leading(logits, weights, share).tolist())
        reached, made = np.cumsum(weights), CompiledDraw(words, 2.0, share)
        for _ in range(100):
            used: list[float] = []
            token = made(logits, lambda used=used: used.append(float(rng.random())) or used[-1])
            assert token in nucleus
            middle = reached[token] - weights[token] / 2
            assert abs(middle - used[-1] * reached[-1]) <= weights[token] / 2 + 1e-6 * reached[-1]


@pytest.mark.parametrize("share", [0.4, 0.95, 1.0])
def test_a_logit_beyond_f32_is_drawn(share: float) -> None:
    """A bias that a penalty multiplies. Probabilities were NaN, of which a draw by `top_p` found none in its nucleus."""
    how = Sampling(do_sample=True, top_p=share, logit_bias={1: 1e30}, repetition_penalty=1e-9)
    assert Sampler(how, [1]).choose(np.zeros(3, np.float32)) == 1


def test_the_nucleus_of_a_high_temperature_has_the_most_probable_tokens() -> None:
    """Whose weights in f32 are all 1."""
    logits = np.random.default_rng(0).permutation(np.linspace(-3, 3, 100, dtype=np.float32))
    drawn = shares(logits, 500, top_p=0.5, temperature=1e30)
    assert set(np.flatnonzero(drawn)) <= set(np.argsort(logits)[-51:])


def test_a_draw_never_takes_what_has_no_weight() -> None:
    weights = np.zeros(3000, np.float32)
    weights[[5, 1500]] = 1e-30, 1
    assert {draw(weights, u) for u in np.random.default_rng(0).random(500)} == {1500}


# beside another's


@pytest.mark.parametrize("words", [5, 300, 20_000])
def test_what_is_kept_is_what_transformers_keeps(words: int) -> None:
    torch = pytest.importorskip("torch", reason="transformers compute with torch: pip install torch transformers")
    hf: Any = pytest.importorskip("transformers", reason="pip install torch transformers").generation.logits_process
    rng = np.random.default_rng(words)
    for k in range(60):
        logits = np.round(rng.normal(size=words) * rng.choice([0.1, 1, 5]), 2 if k % 2 else 6).astype(np.float32)
        prompt, chosen = rng.integers(0, words, 6).tolist(), rng.integers(0, words, 5).tolist()
        how: dict[str, Any] = {
            "temperature": float(rng.choice([0.3, 0.8, 1, 2])), "top_k": int(rng.choice([0, 1, 3, 50])),
            "min_p": float(rng.choice([0, 0.05, 0.5])), "typical_p": float(rng.choice([1, 0.5, 0.9])),
            "repetition_penalty": float(rng.choice([1, 1.3])), "logit_bias": {int(rng.integers(words)): 2.5} if k % 3 else {},
        }  # fmt: skip
        if k % 2 == 0:  # where scores tie, transformers' nucleus depends on a sort that is not stable
            how["top_p"] = float(rng.choice([1, 0.4, 0.95]))
        processors: list[Any] = []
        if how["logit_bias"]:
            processors.append(hf.SequenceBiasLogitsProcessor({(t,): b for t, b in how["logit_bias"].items()}))
        if how["repetition_penalty"] != 1:
            processors.append(hf.RepetitionPenaltyLogitsProcessor(how["repetition_penalty"]))
        processors.append(hf.TemperatureLogitsWarper(how["temperature"]))
        processors += [hf.TopKLogitsWarper(how["top_k"])] if how["top_k"] else []
        processors += [hf.TopPLogitsWarper(how["top_p"])] if how.get("top_p", 1) < 1 else []
        processors += [hf.MinPLogitsWarper(how["min_p"])] if how["min_p"] else []
        processors += [hf.TypicalLogitsWarper(how["typical_p"])] if how["typical_p"] < 1 else []
        scores = torch.tensor(logits)[None]
        for p in processors:
            scores = p(torch.tensor([prompt + chosen]), scores)
        want = torch.softmax(scores, -1)[0].numpy()
        sampler = Sampler(Sampling(do_sample=True, **how), prompt)
        for token in chosen:
            sampler.append(token)
        np.testing.assert_allclose(probabilities(sampler, logits), want, atol=2e-6, err_msg=str(how))


def probabilities(sampler: Sampler, logits: np.ndarray) -> np.ndarray:
    """Of each token, seen by the weights that a draw is made from."""
    seen: list[np.ndarray] = []

    def kept(scores: np.ndarray) -> np.ndarray | None:
        found = original(scores)
        p = np.exp(scores) if found is None else np.zeros_like(scores)
        if found is not None:
            p[found] = np.exp(scores[found])
        seen.append(p / p.sum())
        return found

    def drawn(_: CompiledDraw, scores: np.ndarray, __: Any) -> int:
        weights = np.exp((scores - scores.max()) / np.float32(sampler._sampling.temperature))
        found, p = leading(weights, weights, sampler._sampling.top_p), np.zeros_like(weights)
        p[found] = weights[found]
        seen.append(p / p.sum())
        return 0

    original, sampler._kept = sampler._kept, kept  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling.CompiledDraw, "__call__", drawn)
        sampler.choose(logits)
    return seen[0]
