"""Encoder-decoders: tokens of onnxruntime, which keeps no caches; texts; what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers
from seq2seq import END, PLACES, START, WORDS, Reference, decoder, write_folder

import occ

SOURCES = [[3, 1, 4, 1, 5, 9, 2, 6], [7], list(range(3, 30))]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("one_file", [False, True], ids=["two decoders", "merged"])
def test_tokens_are_those_of_a_model_without_caches(
    target: str, one_file: bool, reference: Reference, tmp_path: Path
) -> None:
    lm = occ.LanguageModel(write_folder(tmp_path / "m", one_file=one_file), threads=1, target=target)
    assert (lm.capacity, lm.eos_ids) == (PLACES, (END,))
    for source in SOURCES:
        want = reference.greedy(source, 30)
        assert lm.generate(source, 30) == want
        assert list(lm.stream(source, 5)) == want[:5]
    assert lm.generate(SOURCES, 6) == [reference.greedy(s, 6) for s in SOURCES]
    assert len({t for s in SOURCES for t in reference.greedy(s, 30)}) > 8


def test_logits_are_those_of_a_model_without_caches(reference: Reference, tmp_path: Path) -> None:
    from occ.generation.seq2seq import Seq2Seq, Seq2SeqFiles

    files = Seq2SeqFiles.of(write_folder(tmp_path / "m"))
    assert files is not None
    made = Seq2Seq(files, threads=1, capacity=20, target="cpu-jit").begin({"input_ids": np.array([SOURCES[0]])})
    tokens = [START, *np.random.default_rng(3).integers(0, WORDS, 15).tolist()]
    for k, token in enumerate(tokens):
        np.testing.assert_allclose(
            made.append([token]), reference.logits(SOURCES[0], tokens[: k + 1]), rtol=1e-4, atol=1e-4
        )


def test_the_configuration_says_how_texts_begin_and_what_is_never_written(reference: Reference, tmp_path: Path) -> None:
    plain = reference.greedy(SOURCES[0], 10, (START, 5))
    never = plain[0]
    lm = occ.LanguageModel(
        write_folder(tmp_path / "m", forced_bos_token_id=5, bad_words_ids=[[never]]), threads=1, target="cpu-jit"
    )
    assert lm.generate(SOURCES[0], 10) == reference.greedy(SOURCES[0], 10, (START, 5), (never,))
    lm = occ.LanguageModel(
        write_folder(tmp_path / "n", begin_suppress_tokens=[plain[0]], suppress_tokens=[plain[1]]),
        threads=1,
        target="cpu-jit",
    )
    first, *_ = got = lm.generate(SOURCES[0], 10)
    assert plain[1] not in got
    assert first == reference.greedy(SOURCES[0], 1, (START,), (plain[0], plain[1]))[0]


def test_texts_give_texts(reference: Reference, tmp_path: Path, occ_cli: Any) -> None:
    folder = write_folder(tmp_path / "m")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{k}": k for k in range(WORDS)}, "w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing("$A w2", special_tokens=[("w2", 2)])
    made.add_special_tokens(["w2"])
    made.save(str(folder / "tokenizer.json"))
    lm = occ.LanguageModel(folder, threads=1, target="cpu-jit")
    want = reference.greedy([3, 1, 4, 2], 8)
    text = " ".join(f"w{t}" for t in want if t != END)
    assert lm.generate("w3 w1 w4", 8) == text
    assert lm.generate("w3 w1 w4", 8, texts=False) == want
    done = occ_cli("generate", folder, "--prompt", "w3 w1 w4", "--greedy", "--max-new-tokens", "8")
    assert (done.code, done.out.strip()) == (0, text)


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    lm = occ.LanguageModel(folder, threads=1, target="cpu-jit")
    for act, said in (
        (lambda: lm.generate([3], num_beams=2), "beams"), (lambda: lm.generate([[3], [4]], batch_size=2), "one text at a time"),
        (lambda: lm.generate([WORDS]), f"token {WORDS}"), (lambda: lm.generate([]), "0 tokens"), (lambda: lm.generate("a"), "tokenizer"),
        (lambda: occ.LanguageModel(folder, several=True), "several"),
    ):  # fmt: skip
        with pytest.raises(occ.RunError, match=said):
            act()
    from occ.generation.folder import Folder

    with pytest.raises(occ.RunError, match="encoder-decoder"):
        Folder.of(folder)


def test_folders_that_lack_something_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    for name, config, said in (
        ("whisper", {"model_type": "whisper"}, "occ transcribe"), ("start", {"decoder_start_token_id": None}, "first token"),
    ):  # fmt: skip
        with pytest.raises(occ.RunError, match=said):
            occ.LanguageModel(write_folder(tmp_path / name, **config), target="cpu-jit")
    folder = write_folder(tmp_path / "m")
    with pytest.raises(occ.RunError, match="takes no drafts"):
        occ.LanguageModel(folder, target="cpu-jit", draft="ngram", draft_tokens=2)
    (folder / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(occ.RunError, match="decoder_model_merged"):
        occ.LanguageModel(folder)
    onnx.save(decoder(False), folder / "decoder_model_merged.onnx")
    with pytest.raises(occ.RunError, match="no past"):
        occ.LanguageModel(folder, target="cpu-jit")
    (folder / "config.json").write_text(json.dumps([]))
    with pytest.raises(occ.RunError, match=r"config\.json"):
        occ.LanguageModel(folder)


def test_a_user_may_derive_a_kind_of_language_models() -> None:
    class Mine(occ.LanguageModel):
        pass

    assert not any(kind is Mine for _, kind in occ.LanguageModel._kinds), (
        "only what says which folders it opens is found"
    )
