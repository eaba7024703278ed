"""Beam search: the tokens of transformers, and of decoders that follow several texts at a time.

`beam_search.json` has what transformers 5.23 finds (`generate(num_beams=..., num_return_sequences=num_beams)`) for a model whose
logits after tokens a and b are `LOGITS[a, b]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import Reference, decoder, in_blocks, merged

import occ
from occ.generation.beams import Beams, search

CASES = json.loads(Path(__file__).with_name("beam_search.json").read_text())
LOGITS = (np.random.default_rng(0).normal(size=(12, 12, 12)) * 2).astype(np.float32)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class _Again:
    """What `Rows` is, for a function of all tokens of each text."""

    def __init__(self, logits: Callable[[list[int]], np.ndarray], prompt: Sequence[int], count: int) -> None:
        self.tokens, self.logits = np.tile(prompt, (count, 1)), logits

    def append(self, tokens: Sequence[int], parents: np.ndarray) -> np.ndarray:
        self.tokens = np.column_stack([self.tokens[parents], tokens])
        return np.stack([self.logits(t) for t in self.tokens.tolist()])


def _found(
    logits: Callable[[list[int]], np.ndarray], how: Beams, prompt: list[int], count: int, ends: Sequence[int]
) -> list[list[int]]:
    rows: Any = _Again(logits, prompt, how.num_beams)
    return search(how, prompt, logits(prompt), rows, count, lambda made: made[-1] in ends, ends)


def _last(model: onnx.ModelProto) -> Callable[[list[int]], np.ndarray]:
    reference = Reference(model)
    return lambda tokens: reference.logits(tokens)[-1]


def test_beams_are_those_of_transformers() -> None:
    for c in CASES:
        n, prompt = c["num_beams"], c["prompt"]
        how = Beams(n, c["length_penalty"], c["early_stopping"], n, c["repetition_penalty"])
        got = _found(lambda t: LOGITS[t[-2], t[-1]], how, prompt, c["count"], c["ends"])
        assert got == c["sequences"], c


@pytest.mark.parametrize(
    ("target", "taps", "attributes"),
    [("cpu-jit", 0, {}), ("cpu", 0, {"local_window_size": 6}), ("cpu-jit", 4, {"softcap": 2.0}), ("cpu", 4, {})],
)
def test_beams_share_what_a_decoder_holds(target: str, taps: int, attributes: dict[str, float], tmp_path: Path) -> None:
    model = decoder(taps=taps, **attributes)
    onnx.save(model, tmp_path / "model.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target=target)
    for prompt, n, penalty in ((PROMPT, 4, 1.0), ([7], 3, 0.0)):
        want = _found(_last(model), Beams(n, penalty, num_return_sequences=n), prompt, 12, (9, 23))
        got = lm.generate(
            prompt,
            12,
            num_beams=n,
            num_return_sequences=n,
            length_penalty=penalty,
            stop=[9, 23],
            repetition_penalty=1.0,
        )
        assert got == want
        assert lm.generate(prompt, 12, num_beams=n, length_penalty=penalty, stop=[9, 23]) == want[0]
    assert lm.generate([PROMPT, [7]], 5, num_beams=2) == [lm.generate(p, 5, num_beams=2) for p in (PROMPT, [7])]


def test_beams_of_products_in_blocks(tmp_path: Path) -> None:
    model = in_blocks(decoder(), 0)
    onnx.save(model, tmp_path / "model.onnx")
    lm = occ.LanguageModel(tmp_path, threads=2, capacity=64)
    want = _found(_last(model), Beams(4, num_return_sequences=4), PROMPT, 8, ())
    assert lm.generate(PROMPT, 8, num_beams=4, num_return_sequences=4) == want


def test_beams_of_merged_decoders(tmp_path: Path) -> None:
    model = decoder()
    onnx.save(merged(model), tmp_path / "decoder_model_merged.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target="cpu-jit")
    want = _found(_last(model), Beams(3, num_return_sequences=3), PROMPT, 6, ())
    assert lm.generate(PROMPT, 6, num_beams=3, num_return_sequences=3) == want


def test_what_beams_cannot_do_is_an_error(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "model.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target="cpu-jit")
    for how, said in (
        ({"num_beams": 0}, "num_beams"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"num_beams": 2, "do_sample": True}, "do_sample"),
        ({"num_beams": 2, "max_new_tokens": -1}, "max_new_tokens"),
    ):
        with pytest.raises(occ.RunError, match=said):
            lm.generate(PROMPT, **how)
    assert lm.generate(PROMPT, 0, num_beams=2) == []


def test_a_model_for_one_text_has_no_beams(tmp_path: Path) -> None:
    model = decoder()
    for x in (*model.graph.input, *model.graph.output):
        x.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "model.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target="cpu-jit")
    with pytest.raises(occ.RunError, match="takes 1 text at a time"):
        lm.generate(PROMPT, 4, num_beams=2)
