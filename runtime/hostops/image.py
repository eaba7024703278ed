"""ImageDecoder, with the package pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.runtime.errors import RunError

_LARGEST = 1 << 28  # pixels; more is considered an attack on the memory


def image_decoder(data: np.ndarray, *, a: SimpleNamespace) -> np.ndarray:
    """Encoded bytes, u8[n] -> pixels, u8[height, width, channels], RGB, BGR or grey by `a.pixel_format`."""
    try:
        from PIL import Image
    except ImportError:
        raise RunError("OCC0504", "`ImageDecoder` needs the package pillow", "pip install pillow") from None
    try:
        image = Image.open(io.BytesIO(np.ascontiguousarray(data).tobytes()))
        if image.width * image.height > _LARGEST:
            raise ValueError(f"the image has {image.width} x {image.height} pixels")
        grey = a.pixel_format == "Grayscale"
        pixels = np.array(image.convert("L" if grey else "RGB"), np.uint8)
    except (OSError, SyntaxError) as e:
        raise ValueError(f"the image cannot be decoded: {e}") from None
    if grey:
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if a.pixel_format == "BGR" else pixels


ROUTINES: dict[str, Callable[..., Any]] = {"ImageDecoder": image_decoder}
