"""Tokenizers of GGUF files: the tokens of the tokenizer that the vocabulary was taken from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from architectures import WORDS, write_gguf
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

import occ
from occ.generation.folder import Folder
from occ.generation.gguf_vocabulary import end_tokens, special_tokens, tokenizer_json

TEXTS = [
    "The lens doesn't know: it's 12345 grams, they've said!", "  two spaces\n\n and\ttabs  ", "é漢字 and \U0001f600 z̀",
    "", "<|im_start|>user\nHello<|im_end|>\n", "don'T SHOUT 1 22 333 4444",
]  # fmt: skip
CORPUS = [p.read_text() for p in sorted((Path(__file__).parents[2] / "docs").glob("*.md"))[:6]]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(*before: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    """Byte-pair encoding over bytes, with splits before it."""
    made = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Sequence(list(before))
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


# From the tokenizer.json of SmolLM2 and of Qwen 2.5.
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = {
    "smollm": lambda: byte_level(
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    ),
    "qwen2": lambda: byte_level(
        pre_tokenizers.Split(tokenizers.Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        normalizer=normalizers.NFC(),
    ),
    "gpt-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
}


def metadata(made: tokenizers.Tokenizer, **more: Any) -> dict[str, Any]:
    """A vocabulary by the keys of GGUF."""
    words = [made.id_to_token(k) for k in range(made.get_vocab_size())]
    types = [gguf.TokenType.CONTROL if w in SPECIAL else gguf.TokenType.NORMAL for w in words]
    found: dict[str, Any] = {
        "tokens": words,
        "token_type": [int(t) for t in types],
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in (found | more).items()}


@pytest.mark.parametrize("name", BYTES)
def test_words_of_bytes(name: str) -> None:
    theirs = BYTES[name]()
    held = models_merges(theirs)
    ours = tokenizers.Tokenizer.from_str(tokenizer_json(metadata(theirs, model="gpt2", pre=name, merges=held)))
    for text in (*TEXTS, CORPUS[0][:2000]):
        ids = theirs.encode(text).ids
        assert ours.encode(text).ids == ids
        assert ours.decode(ids) == theirs.decode(ids)


def models_merges(made: tokenizers.Tokenizer) -> list[str]:
    """Merges as GGUF has them."""
    import json

    found = json.loads(made.to_str())["model"]["merges"]
    return [m if isinstance(m, str) else " ".join(m) for m in found]


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_of_sentences(prefix: bool) -> None:
    """Pieces with scores, bytes for what no piece has, and a space before the text or none: as files of Llama 2 and Gemma."""
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if prefix else []), normalizers.Replace(" ", "▁")]
    )
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    first = ["<unk>", "<s>", "</s>", *(f"<0x{k:02X}>" for k in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=first, show_progress=False, limit_alphabet=60)
    made.train_from_iterator([" ".join(text.split()[k : k + 3]) for text in CORPUS for k in range(0, 3000, 3)], trainer)
    words = [made.id_to_token(k) for k in range(made.get_vocab_size())]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    kinds += [gguf.TokenType.NORMAL] * (len(words) - len(kinds))
    values = {
        "model": "llama", "scores": [-float(k) for k in range(len(words))], "token_type": [int(k) for k in kinds],
        "add_space_prefix": prefix, "unknown_token_id": 0, "add_bos_token": True,
    }  # fmt: skip
    ours = tokenizers.Tokenizer.from_str(tokenizer_json(metadata(made, **values)))
    plain = tokenizers.Tokenizer.from_str(made.to_str().replace('"special":true', '"special":false'))
    for text in (*TEXTS[:3], CORPUS[0][:2000]):
        ids = ours.encode(text).ids
        assert ids == [1, *plain.encode(text).ids]
        assert ours.decode(ids) == text


def test_ends_and_special_tokens_are_found() -> None:
    words = ["<unk>", "<s>", "</s>", "<|eot_id|>", "<|im_end|>", "a"]
    types = [2, 3, 3, 3, 1, 1]
    found = {f"tokenizer.ggml.{k}": v for k, v in {"tokens": words, "token_type": types, "eos_token_id": 2}.items()}
    assert end_tokens(found) == (2, 3)  # a plain word that is called so ends nothing
    assert special_tokens(found | {"tokenizer.ggml.bos_token_id": 1}) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_vocabularies_that_are_not_known_are_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "llama", vocabulary={"model": "gpt2", "pre": "klingon"})
    with pytest.raises(occ.RunError, match=r"klingon[\s\S]*tokenizer.json"):
        Folder.of(file)
    made = tokenizers.Tokenizer(models.WordLevel({f"w{k}": k for k in range(WORDS)}, "w0"))
    made.add_special_tokens([AddedToken("w1")])
    made.save(str(tmp_path / "tokenizer.json"))
    assert Folder.of(file).tokenizer == tmp_path / "tokenizer.json"
    assert Folder.of(tmp_path).model == file


def test_a_file_with_its_words_writes_text(tmp_path: Path) -> None:
    template = "{% for m in messages %}w5 {{ m.content }} {% endfor %}"
    file = write_gguf(
        tmp_path / "model.gguf", "llama", vocabulary={"model": "gpt2", "pre": "gpt-2", "template": template}
    )
    lm = occ.LanguageModel(file, threads=1, capacity=64, target="cpu-jit")
    assert lm.tokenizer is not None
    ids = lm.tokens_of("5677")
    text = lm.generate("5677", 8)
    assert isinstance(text, str)
    assert text == lm.tokenizer.decode(lm.generate(ids, 8))
    assert lm.chat([{"role": "user", "content": "9"}]) == lm.tokenizer.encode("w5 9 ")
