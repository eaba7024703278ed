"""`make demo`: a real text recogniser, compiled in every way, reads a picture, and onnxruntime does too."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

import occ
from occ.compiler.targets.default import DEFAULT

FOLDER = Path(__file__).parent.parent / ".demo"
PACKAGE = "rapidocr-onnxruntime==1.4.4"
MEMBER = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
TEXT = "occ reads ONNX models: 2026"


def fetch() -> Path:
    """The model file, taken out of the public package that ships it."""
    model = FOLDER / "recognise.onnx"
    if not model.exists():
        FOLDER.mkdir(exist_ok=True)
        # The package says Python below 3.13; its model runs with any.
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        pip.append("--ignore-requires-python")
        subprocess.run([*pip, "-d", str(FOLDER), PACKAGE], check=True)
        (wheel,) = FOLDER.glob("rapidocr_onnxruntime-*.whl")
        with zipfile.ZipFile(wheel) as z:
            model.write_bytes(z.read(MEMBER))
    return model


def picture() -> np.ndarray:
    """A picture of the text as the model wants it: f32[1,3,48,W] in [-1, 1]."""
    font = ImageFont.load_default(36)
    left, top, right, bottom = font.getbbox(TEXT)
    image = Image.new("RGB", (int(right - left) + 32, 64), "white")
    ImageDraw.Draw(image).text((16, 32 - (top + bottom) / 2), TEXT, "black", font)
    image.save(FOLDER / "picture.png")
    small = image.resize((round(image.width * 48 / 64), 48), Image.Resampling.BILINEAR)
    pixels = np.asarray(small, np.float32)[:, :, ::-1] / 127.5 - 1
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]


def decode(probabilities: np.ndarray, characters: list[str]) -> str:
    """The text of a CTC output, f32[1,T,C]: repeats and blanks (class 0) dropped."""
    best = probabilities[0].argmax(-1)
    kept = [k for k, before in zip(best, [0, *best[:-1]], strict=True) if k and k != before]
    return "".join(characters[k - 1] for k in kept)


def main() -> None:
    """Read the picture with every target and with onnxruntime."""
    model, x = fetch(), picture()
    data = {p.key: p.value for p in onnx.load(model).metadata_props}
    characters = [*data["character"].splitlines(), " "]
    print(f"model    {PACKAGE}: {MEMBER}, sha256 {hashlib.sha256(model.read_bytes()).hexdigest()[:16]}")
    print(f"picture  {FOLDER / 'picture.png'}, as f32{list(x.shape)}")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    expected = session.run(None, {session.get_inputs()[0].name: x})[0]
    print(f"{'onnxruntime':12} {decode(expected, characters)!r}")
    for target in dict.fromkeys((DEFAULT, "cpu-jit", "interp")):
        start = time.perf_counter()
        compiled = occ.compile(model, target)
        built = time.perf_counter() - start
        (y,) = compiled(x)
        gap = np.abs(y - expected).max() / np.abs(expected).max()
        print(f"occ {target:8} {decode(y, characters)!r}  (built in {built:.1f} s, largest difference {gap:.1e})")


if __name__ == "__main__":
    main()
