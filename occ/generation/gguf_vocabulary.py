"""The tokenizer of a GGUF file, as the `tokenizer.json` of the library `tokenizers`.

Sources: the keys `tokenizer.ggml.*` of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; how llama.cpp splits
texts (`src/llama-vocab.cpp`), with expressions as in the models' own files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from occ.runtime.errors import RunError

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER = 1, 2, 3, 4  # token_type
_SPACE = "\u2581"  # replaces a space in vocabularies of SentencePiece

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = "|".join(f"{w}{_CONTRACTIONS}?" for w in _WORDS) + r"|\p{N}{1,3}" + _CASED_REST
_TEKKEN = "|".join(_WORDS) + r"|\p{N}" + _CASED_REST
# Expressions by which texts are split, in order, by the name of the pre-tokenizer.
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), (_QWEN2,)),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    "tekken": (_TEKKEN,),
}
_WHOLE_WORDS = (
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "pixtral",
    "lfm2",
    "tekken",
)  # whole words that skip merges
_BEGIN = _WHOLE_WORDS  # whether texts start with a token, unless the file says otherwise
_ENDS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
    "<eos>",
    "</s>",
)  # fmt: skip


def tokenizer_json(metadata: Mapping[str, Any]) -> str:
    """The text of a `tokenizer.json`; empty if the file has no vocabulary.

    Args:
        metadata: of the file.

    Raises:
        RunError: OCC0501 its vocabulary is of an unknown kind, or invalid.
    """
    kind, words = metadata.get(f"{_KEY}model"), metadata.get(f"{_KEY}tokens")
    if kind is None or not isinstance(words, list):
        return ""
    types = metadata.get(f"{_KEY}token_type") or [_NORMAL] * len(words)
    if len(types) != len(words) or not all(isinstance(w, str) for w in words):
        raise _refused(f"{len(words)} tokens and {len(types)} types of them")
    made = {"gpt2": _byte_level, "llama": _sentence_piece}.get(str(kind))
    if made is None:
        raise _refused(f"a vocabulary of the kind `{kind!s:.40}`")
    added = [
        {"id": k, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": t == _CONTROL}
        for k, (w, t) in enumerate(zip(words, types, strict=True)) if t in (_CONTROL, _USER)
    ]  # fmt: skip
    shared = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    text = json.dumps(shared | made(metadata, words) | _ends_of_texts(metadata, words))
    return text.encode("utf-8", "replace").decode()


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Texts of special tokens by their name in chat templates."""
    words = metadata.get(f"{_KEY}tokens") or []
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: metadata.get(f"{_KEY}{key}_token_id") for name, key in names.items()}
    return {name: words[k] for name, k in ids.items() if isinstance(k, int) and 0 <= k < len(words)}


def end_tokens(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a text: those that the file names, and those with such names."""
    words, types = metadata.get(f"{_KEY}tokens") or [], metadata.get(f"{_KEY}token_type") or []
    named = [metadata.get(f"{_KEY}{key}_token_id") for key in ("eos", "eot", "eom")]
    called = [k for k, (w, t) in enumerate(zip(words, types, strict=False)) if t == _CONTROL and w in _ENDS]
    return tuple(dict.fromkeys(k for k in (*named, *called) if isinstance(k, int)))


def _refused(why: str) -> RunError:
    return RunError(
        "OCC0501", f"the tokenizer of the GGUF file cannot be read: it has {why}",
        "put the tokenizer.json of the model beside the file",
    )  # fmt: skip


def _byte_level(metadata: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Byte-pair encoding with GPT-2's letters for bytes."""
    name, merges = str(metadata.get(f"{_KEY}pre", "gpt-2")), metadata.get(f"{_KEY}merges") or []
    if name not in _SPLITS:
        raise _refused(f"the pre-tokenizer `{name:.40}`")
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in _SPLITS[name]
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    pairs = [(m[: m.find(" ", 1)], m[m.find(" ", 1) + 1 :]) for m in merges]
    known = set(words)
    return {
        "normalizer": {"type": "NFC"} if _SPLITS[name] == (_QWEN2,) else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_]},
        "decoder": bytes_,
        "model": {
            "type": "BPE", "vocab": {w: k for k, w in enumerate(words)}, "ignore_merges": name in _WHOLE_WORDS,
            "merges": [p for p in pairs if p[0] in known and p[1] in known and "".join(p) in known],
        },
    }  # fmt: skip


def _sentence_piece(metadata: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """SentencePiece's byte-pair encoding, which merges the pair that forms the highest-scoring piece."""
    scores = metadata.get(f"{_KEY}scores") or []
    if len(scores) != len(words):
        raise _refused(f"{len(words)} tokens and {len(scores)} scores")
    ids = {w: k for k, w in enumerate(words)}
    order = sorted(range(len(words)), key=lambda k: -scores[k])  # stable: equal scores stay in order
    merges = list(chain.from_iterable(_merges_into(words[k], ids) for k in order))
    prefix = metadata.get(f"{_KEY}add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    back = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    back += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    unknown = metadata.get(f"{_KEY}unknown_token_id", 0)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": back},
        "model": {
            "type": "BPE", "vocab": ids, "merges": merges, "fuse_unk": True, "byte_fallback": True,
            "unk_token": words[unknown] if 0 <= unknown < len(words) else None,
        },
    }  # fmt: skip


def _merges_into(word: str, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of pieces that form a word, by their numbers in the vocabulary."""
    found = [
        (word[:at], word[at:])
        for at in range(1, len(word))
        if word[at:] in ids and word[:at] in ids  # long words start with pieces more often than they end with them
    ]
    if len(found) > 1:
        found.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return found


def _ends_of_texts(metadata: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The post-processor, which adds tokens around a text."""
    spm = metadata.get(f"{_KEY}model") == "llama"
    begins = metadata.get(f"{_KEY}add_bos_token", spm or metadata.get(f"{_KEY}pre") in _BEGIN)
    ids = {
        key: metadata.get(f"{_KEY}{key}_token_id")
        for key, wanted in (("bos", begins), ("eos", metadata.get(f"{_KEY}add_eos_token", False))) if wanted
    }  # fmt: skip
    held = {key: k for key, k in ids.items() if isinstance(k, int) and 0 <= k < len(words)}
    if not held:
        return {"post_processor": None}
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    around = {key: [{"SpecialToken": {"id": words[k], "type_id": 0}}] for key, k in held.items()}
    single = [*around.get("bos", []), *text, *around.get("eos", [])]
    special = {words[k]: {"id": words[k], "ids": [k], "tokens": [words[k]]} for k in held.values()}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    made = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    return {"post_processor": made}
