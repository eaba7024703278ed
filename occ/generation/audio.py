"""Audio as models expect it: mono samples at one rate, from WAV files, and their log-mel spectrogram.

Sources: RIFF WAVE (IBM and Microsoft 1991); Radford et al. 2022 (Whisper) and `WhisperFeatureExtractor` of
transformers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_TAPS = 32  # zero crossings of the resampling filter, to each side


def read_sound(path: Path, rate: int) -> np.ndarray:
    """The samples of a WAV file, f32 in -1 to 1, its channels mixed, at `rate` samples per second.

    Raises:
        RunError: OCC0501 the file cannot be read, or is neither PCM nor float.
    """
    try:
        samples, given = _read_wave(path.read_bytes())
    except OSError as e:
        raise RunError("OCC0501", f"`{path}` cannot be read: {e.strerror}", "pass a WAV file") from None
    except (ValueError, struct.error) as e:
        raise RunError(
            "OCC0501",
            f"`{path}` is not a WAV file that can be read: {e}",
            f"convert it: `ffmpeg -i FILE -ar {rate} -ac 1 out.wav`",
        ) from None
    return resampled(samples, given, rate)


def _read_wave(data: bytes) -> tuple[np.ndarray, int]:
    """Samples `[n]` of all channels mixed, and the sample rate."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise ValueError("its header is wrong")
    form, at = None, 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        body = data[at + 8 : at + 8 + size]
        if kind == b"fmt ":
            form = struct.unpack_from("<HHIIHH", body)
            if form[0] == _EXTENSIBLE:
                form = (struct.unpack_from("<H", body, 24)[0], *form[1:])
        elif kind == b"data":
            if form is None:
                raise ValueError("its samples come before their format")
            return _mixed(body, *form), form[2]
        at += 8 + size + size % 2
    raise ValueError("it has no samples")


def _mixed(body: bytes, form: int, channels: int, rate: int, _: int, align: int, bits: int) -> np.ndarray:
    kinds = {(_PCM, 8): "u1", (_PCM, 16): "<i2", (_PCM, 32): "<i4", (_FLOAT, 32): "<f4", (_FLOAT, 64): "<f8"}
    if not channels or not 1000 <= rate <= 1 << 20 or align != channels * bits // 8:
        raise ValueError(f"it has {channels} channels of {bits} bits at {rate} a second")
    body = body[: len(body) // align * align]
    if (form, bits) == (_PCM, 24):
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        samples, bits = wide.view("<i4").reshape(-1), 32
    elif (form, bits) in kinds:
        samples = np.frombuffer(body, kinds[form, bits])
    else:
        raise ValueError(f"its samples are of {bits} bits in format {form}")
    values = samples.astype(np.float32)
    if form == _PCM:
        values = (values - 128) / 128 if bits == 8 else values / np.float32(1 << (bits - 1))
    return values.reshape(-1, channels).mean(1)


def resampled(samples: np.ndarray, given: int, wanted: int) -> np.ndarray:
    """Samples at another rate, by a windowed sinc that removes frequencies above half of either rate."""
    if given == wanted or not len(samples):
        return samples.astype(np.float32)
    count, cut = -(-len(samples) * wanted // given), min(1.0, wanted / given)
    reach = int(np.ceil(_TAPS / cut))
    padded = np.pad(samples.astype(np.float32), reach + 1)
    offsets = np.arange(-reach, reach + 1)
    made = np.empty(count, np.float32)
    for at in range(0, count, 1 << 14):
        place = np.arange(at, min(at + (1 << 14), count)) * (given / wanted)
        first = np.floor(place).astype(np.int64)
        away = (place - first)[:, None] - offsets
        window = np.cos(np.clip(away / (reach + 1), -1, 1) * (np.pi / 2)) ** 2
        near = padded[first[:, None] + offsets + reach + 1]
        made[at : at + len(place)] = (near * np.sinc(away * cut) * window * cut).sum(1)
    return made


@dataclass(frozen=True)
class MelSpectrogram:
    """Log-mel features as in Whisper.

    Attributes:
        bands: of the mel scale.
        rate: samples per second.
        window, hop: samples of a frame, and between frame starts.
        seconds: length of the encoder's input; shorter audio is padded with silence.
    """

    bands: int = 80
    rate: int = 16000
    window: int = 400
    hop: int = 160
    seconds: int = 30

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> MelSpectrogram:
        """From `preprocessor_config.json`."""
        names = {
            "bands": "feature_size",
            "rate": "sampling_rate",
            "window": "n_fft",
            "hop": "hop_length",
            "seconds": "chunk_length",
        }
        found = {k: config[name] for k, name in names.items() if name in config}
        if odd := [names[k] for k, v in found.items() if not isinstance(v, int) or not 0 < v < 1 << 20]:
            raise RunError(
                "OCC0501", f"`{odd[0]}` of preprocessor_config.json is not a size", "download the file again"
            )
        return cls(**found)

    @property
    def samples(self) -> int:
        """Frames of the encoder's input."""
        return self.seconds * self.rate

    def features(self, samples: np.ndarray) -> np.ndarray:
        """The features f32 `[1, bands, frames]` of at most `seconds` of audio f32 `[n]`."""
        whole = np.zeros(self.samples)
        part = samples[: self.samples]
        whole[: len(part)] = part
        padded = np.pad(whole, self.window // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.window)[:: self.hop][: self.samples // self.hop]
        weight = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)  # of Hann, periodic
        power = np.abs(np.fft.rfft(frames * weight)) ** 2
        found = np.log10(np.maximum(power @ _filters(self.bands, self.window, self.rate), 1e-10))
        found = np.maximum(found, found.max() - 8)
        return ((found + 4) / 4).T[None].astype(np.float32)


@lru_cache(4)
def _filters(bands: int, window: int, rate: int) -> np.ndarray:
    """Triangles on Slaney's mel scale, each of area 1: f64 `[window / 2 + 1, bands]` (Auditory Toolbox, 1998)."""

    def mel(hertz: float) -> float:
        return 3 * hertz / 200 if hertz < 1000 else 15 + np.log(hertz / 1000) * 27 / np.log(6.4)

    mels = np.linspace(mel(0), mel(rate / 2), bands + 2)
    corners = np.where(mels < 15, 200 * mels / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
    bins = np.linspace(0, rate // 2, window // 2 + 1)[:, None]
    up = (bins - corners[:-2]) / np.diff(corners)[:-1]
    down = (corners[2:] - bins) / np.diff(corners)[1:]
    return np.maximum(0, np.minimum(up, down)) * (2 / (corners[2:] - corners[:-2]))
