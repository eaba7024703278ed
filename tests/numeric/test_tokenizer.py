"""Text from streamed tokens, and conversations in the template of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

import occ
from occ.generation.tokenizer import TextStream, Tokenizer

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a token for each byte."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: k for k, c in enumerate(letters)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(path := tmp_path_factory.mktemp("bytes") / "tokenizer.json"))
    return path


@pytest.mark.parametrize("text", ["naïve café", "日本語", "a 👩‍👩‍👧 b", "�", "tab\tand\nline"])
def test_characters_of_several_tokens_come_whole(file: Path, text: str) -> None:
    tokenizer = Tokenizer(file)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    stream = TextStream(tokenizer)
    pieces = [stream.push(t) for t in ids]
    assert "".join([*pieces, stream.finish()]) == text
    assert "�" in text or not any("�" in p for p in pieces)
    cut = TextStream(tokenizer)
    assert [cut.push(t) for t in tokenizer.encode("é")[:1]] + [cut.finish()] == ["", "�"]


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("one END two", ["END"], "one "),
        ("one EN two", ["END"], "one EN two"),
        ("one EN", ["END"], "one EN"),
        ("a\n\nb", ["\n\n"], "a"),
        ("xyz", ["z", "yz"], "x"),
        ("日本語", ["本"], "日"),
        ("ENENDx", ["END", ""], "EN"),
    ],
)
def test_a_stop_text_of_several_tokens_is_never_seen(file: Path, text: str, stops: list[str], wanted: str) -> None:
    tokenizer = Tokenizer(file)
    stream = TextStream(tokenizer, stops)
    made = ""
    for t in tokenizer.encode(text):
        made += stream.push(t)
        assert wanted.startswith(made)
        if stream.ended:
            break
    assert made + stream.finish() == wanted
    assert stream.ended == (wanted != text)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ '\\ud800' }}", "surrogates not allowed"),
        ("{{ messages[0]['content'] + 1 }}", "str"),
        ("{{ messages[5]['content'] }}", "messages|no element"),
        ("{{ 1 / 0 }}", "division"),
        ("{% for m in messages %}", "endfor"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("", "no chat template"),
    ],
)
def test_templates_that_fail_are_one_error(file: Path, template: str, said: str) -> None:
    with pytest.raises(occ.RunError, match=said):
        Tokenizer(file, template).chat([{"role": "user", "content": "hello"}])


def test_templates_have_what_those_of_transformers_have(file: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
        "{% if add_generation_prompt %}|{% endif %}{{ strftime_now('%Y')|length }}"
    )
    tokenizer = Tokenizer(file, template, {"bos_token": "<s>"})
    made = tokenizer.decode(tokenizer.chat([{"content": "é <b>"}, {"content": "unread"}]))
    assert made == '<s>{"content": "é <b>"}|4'


def test_templates_are_compiled_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server renders one for each chat: to compile it takes 40 to 130 times as long."""
    environment = pytest.importorskip("jinja2").Environment
    compile_, count = environment.compile, []
    monkeypatch.setattr(environment, "compile", lambda *a, **k: count.append(1) or compile_(*a, **k))
    tokenizer = Tokenizer(file, "{{ messages[0].content }}{{ more }}")
    made = [tokenizer.decode(tokenizer.chat([{"content": c}], more=m)) for c, m in (("a", "b"), ("c", "d"))]
    assert (made, len(count)) == (["ab", "cd"], 1)


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(occ.RunError, match="not a tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json")
