"""Sounds: WAV files, log-mel features, and what Whisper writes of them."""

from __future__ import annotations

import json
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seq2seq
import tokenizers
from seq2seq import Reference, write_folder

import occ
from occ.generation.audio import MelSpectrogram, read_sound, resampled
from occ.generation.transcriber import _Rules

RATE = 16000
# Of `chirp()`: every eighth of the bands, every 65th of the first frames, by WhisperFeatureExtractor of transformers 4.57.6.
MEL = {
    80: [
        [1.1246, -0.52601, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614],
        [0.84637, 0.13209, -0.59098, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614],
        [0.4738, 0.09329, 0.14372, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614],
        [0.15708, -0.59614, 0.15253, 0.08211, -0.59614, -0.59614, -0.59614, -0.59614],
        [0.07915, -0.59614, -0.59614, -0.31497, 1.30319, -0.44906, -0.59614, -0.59614],
        [0.4515, -0.59614, -0.59614, -0.59614, -0.59614, -0.35714, 1.32118, -0.39701],
        [0.39065, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614],
        [0.14043, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614, -0.59614],
    ],
    128: [
        [1.04884, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456],
        [0.90072, 0.12226, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456],
        [0.47554, 0.13487, 0.0335, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456],
        [0.20096, -0.54456, 0.21523, 0.03742, -0.54456, -0.54456, -0.54456, -0.54456],
        [0.0612, -0.54456, -0.54456, -0.30517, 1.21524, -0.48131, -0.54456, -0.54456],
        [0.44738, -0.54456, -0.54456, -0.54456, -0.54456, -0.34448, 1.33737, -0.42903],
        [0.39216, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456],
        [0.14292, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456, -0.54456],
    ],
}


def chirp() -> np.ndarray:
    t = np.arange(RATE * 5) / RATE
    return (0.4 * np.sin(2 * np.pi * (200 + 300 * t) * t) + 0.1 * np.sin(2 * np.pi * 3000 * t)).astype(np.float32)


@pytest.mark.parametrize("bands", MEL)
def test_features_are_those_of_transformers(bands: int) -> None:
    got = MelSpectrogram(bands).features(chirp())
    assert got.shape == (1, bands, 3000)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[0, :: bands // 8, :520:65], MEL[bands], atol=5e-5)


def riff(samples: bytes, *form: int, extensible: bool = False, before: bytes = b"") -> bytes:
    fmt = struct.pack("<HHIIHH", 0xFFFE if extensible else form[0], *form[1:])
    fmt += struct.pack("<HHIH", 22, form[-1], 0, form[0]) + bytes(14) if extensible else b""
    body = (
        b"WAVE"
        + before
        + b"fmt "
        + struct.pack("<I", len(fmt))
        + fmt
        + b"data"
        + struct.pack("<I", len(samples))
        + samples
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_wav_files_of_all_kinds(tmp_path: Path) -> None:
    x, path = chirp()[:1000], tmp_path / "x.wav"
    two = np.stack([x, -0.5 * x], 1)
    for bits, kind in ((8, "u1"), (16, "<i2"), (32, "<i4")):
        codes = np.round(two * (2 ** (bits - 1) - 1)) + (128 if bits == 8 else 0)
        with wave.open(str(path), "wb") as w:
            w.setnchannels(2)
            w.setsampwidth(bits // 8)
            w.setframerate(RATE)
            w.writeframes(codes.astype(kind).tobytes())
        np.testing.assert_allclose(read_sound(path, RATE), two.mean(1), atol=2 ** (2 - bits))
    wide = np.round(x * (2**23 - 1)).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    odd = b"LIST" + struct.pack("<I", 3) + b"abc" + b"\0"
    for data in (
        riff(wide, 1, 1, RATE, 3 * RATE, 3, 24), riff(x.tobytes(), 3, 1, RATE, 4 * RATE, 4, 32, before=odd),
        riff(x.astype(np.float64).tobytes(), 3, 1, RATE, 8 * RATE, 8, 64), riff(x.tobytes(), 3, 1, RATE, 4 * RATE, 4, 32, extensible=True),
    ):  # fmt: skip
        path.write_bytes(data)
        np.testing.assert_allclose(read_sound(path, RATE), x, atol=1e-6)


@pytest.mark.parametrize("given", [8000, 11025, 22050, 44100, 48000])
def test_sounds_at_other_rates(given: int) -> None:
    """Sines below half of the rates stay as they are; what is above half of the new one is gone."""
    there, wanted = np.arange(given) / given, np.arange(RATE) / RATE
    got = resampled(np.sin(2 * np.pi * 1000 * there), given, RATE)
    assert len(got) == RATE
    np.testing.assert_allclose(got[500:-500], np.sin(2 * np.pi * 1000 * wanted)[500:-500], atol=2e-3)
    if given > 2 * 12000:
        high = resampled(np.sin(2 * np.pi * 10500 * there), given, RATE)
        assert np.abs(high[500:-500]).max() < 0.01
    assert resampled(np.empty(0, np.float32), given, RATE).shape == (0,)


def test_files_that_are_no_sounds(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    ok = riff(bytes(40), 1, 1, RATE, 2 * RATE, 2, 16)
    for data in (
        b"", b"RIFF", ok[:20], b"ID3" + bytes(50), riff(bytes(8), 1, 0, RATE, 0, 0, 16), riff(bytes(8), 85, 1, RATE, 0, 2, 16),
        riff(bytes(8), 1, 1, 0, 0, 2, 16), ok[:36], b"RIFF" + bytes(4) + b"WAVEdata" + bytes(8),
    ):  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(occ.RunError, match=r"x\.wav[\s\S]*ffmpeg"):
            read_sound(path, RATE)
    with pytest.raises(occ.RunError, match="cannot be read"):
        read_sound(tmp_path / "none.wav", RATE)


TIMES = 50  # <|notimestamps|>, before the first timestamp
GENERATION = {
    "decoder_start_token_id": 41, "eos_token_id": 40, "is_multilingual": True, "lang_to_id": {"<|en|>": 42, "<|de|>": 43},
    "task_to_id": {"transcribe": 45, "translate": 46}, "no_timestamps_token_id": TIMES, "suppress_tokens": [3], "begin_suppress_tokens": [5, 40],
    "max_initial_timestamp_index": 50,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def words() -> Any:
    with pytest.MonkeyPatch.context() as m:
        m.setattr(seq2seq, "WORDS", TIMES + 1502)
        m.setattr(seq2seq, "END", 40)
        yield


@pytest.fixture(scope="module")
def folder(words: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_folder(tmp_path_factory.mktemp("whisper") / "m", sound=True, model_type="whisper", one_file=True)
    (path / "generation_config.json").write_text(json.dumps(GENERATION))
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{k}": k for k in range(seq2seq.WORDS)}, "w0"))
    made.add_special_tokens([f"w{k}" for k in range(40, seq2seq.WORDS)])
    made.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def whisper(folder: Path) -> occ.Transcriber:
    return occ.Transcriber(folder, threads=1, target="cpu-jit")


def test_tokens_without_timestamps_are_those_of_onnxruntime(whisper: occ.Transcriber) -> None:
    reference, states = Reference(sound=True), whisper.mel.features(chirp())
    spoken = reference.logits(states, [41])
    language = "en" if spoken[42] > spoken[43] else "de"
    assert whisper._language({"input_features": states}) == language
    start = (41, whisper.languages[language], 45, TIMES)
    first = reference.greedy(states, 1, start, (3, 5, 40))
    want = first + reference.greedy(states, seq2seq.PLACES - 5, (*start, *first), (3,))
    got = whisper._tokens({"input_features": states}, start)
    assert got == [t for t in want if t != 40]
    assert len(got) > 10
    found = whisper.transcribe(chirp())
    assert (found.language, found.segments) == (language, [])
    assert found.text == " ".join(f"w{t}" for t in got if t < 40)


def test_timestamps_come_in_pairs_that_do_not_go_back() -> None:
    """The rules of `WhisperTimeStampLogitsProcessor`, whatever the logits are."""
    rng, first = np.random.default_rng(2), TIMES + 1
    for _ in range(20):
        rules, made = _Rules(GENERATION, 200, 40, TIMES), list[int]()
        for _ in range(30):
            made.append(int(rules.kept(rng.normal(size=200).astype(np.float32) * 3, made).argmax()))
            if made[-1] == 40:
                break
        times = [k for k, t in enumerate(made) if t >= first]
        assert times[0] == 0
        assert made[0] <= first + 50
        assert [made[k] for k in times] == sorted(made[k] for k in times)
        assert not {3, TIMES} & set(made)
        runs = "".join("t" if t >= first else "e" if t == 40 else "." for t in made)
        assert "ttt" not in runs
        assert all(len(part) != 1 for part in runs.strip("t.e").split(".") if part)


def test_segments_are_parted_by_pairs_of_timestamps(whisper: occ.Transcriber) -> None:
    """What transformers makes of such tokens (`_retrieve_segment`)."""
    t = TIMES + 1
    for tokens, want, covered in (
        ([t, 1, 2, t + 100, t + 150, 4, t + 200, t + 250], [(0, 2, "w1 w2"), (3, 4, "w4")], 4),
        ([t, 1, t + 100, t + 100, 2, t + 300], [(0, 2, "w1"), (2, 6, "w2")], 30),  # nothing is said after a single one
        ([t, 1, t + 100, t + 100, 2, 4], [(0, 2, "w1")], 2),
        ([t + 5, 1, 2, t + 200], [(0, 4, "w1 w2")], 30),
        ([t, 1, 2], [(0, 30, "w1 w2")], 30),
        ([t], [], 30), ([], [], 30),
    ):  # fmt: skip
        segments, seconds = whisper._segments(tokens, 10.0, 30.0)
        assert [(round(s.start - 10, 6), round(s.end - 10, 6), s.text) for s in segments] == want
        assert seconds == pytest.approx(covered)


def test_long_sounds_are_read_a_window_at_a_time(whisper: occ.Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    t, seen = TIMES + 1, list[int]()

    def tokens(states: dict[str, np.ndarray], prompt: list[int]) -> list[int]:
        seen.append(int(prompt[-1]))
        return [t, 1, t + 1000, t + 1000, 2]

    monkeypatch.setattr(whisper, "_tokens", tokens)
    found = whisper.transcribe(np.zeros(RATE * 50, np.float32), language="en")
    assert [(s.start, s.end) for s in found.segments] == [(0, 20), (20, 40), (40, 60)]
    assert seen == [45] * 3


def test_the_command_and_its_errors(folder: Path, tmp_path: Path, occ_cli: Any) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(riff((chirp() * 32767).astype("<i2").tobytes(), 1, 1, RATE, 2 * RATE, 2, 16))
    want = occ.transcribe(folder, path, language="de", task="translate", target="cpu-jit")
    done = occ_cli("transcribe", folder, path, "-t", "cpu-jit", "--language", "de", "--translate")
    assert (done.code, done.out.strip()) == (0, want.text)
    done = occ_cli("transcribe", folder, path, "-t", "cpu-jit", "--language", "de", "--json", "--timestamps")
    assert json.loads(done.out)["language"] == "de"
    for how, said in (({"language": "xx"}, "`xx`"), ({"task": "sing"}, "`sing`")):
        with pytest.raises(occ.RunError, match=said):
            occ.transcribe(folder, path, target="cpu-jit", **how)
    model = occ.Transcriber(folder, target="cpu-jit")
    for sound in (np.zeros((2, 5), np.float32), np.full(5, np.nan, np.float32)):
        with pytest.raises(occ.RunError, match="samples of one channel"):
            model.transcribe(sound)
    with pytest.raises(occ.RunError, match="occ transcribe"):
        occ.LanguageModel(folder)
    with pytest.raises(occ.RunError, match=r"encoder_model\.onnx"):
        occ.Transcriber(tmp_path)
    other = write_folder(tmp_path / "text")
    (other / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    with pytest.raises(occ.RunError, match=r"notimestamps|input_features"):
        occ.Transcriber(other, target="cpu-jit")
