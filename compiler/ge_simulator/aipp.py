"""Simulates static AIPP, the image preprocessing of Ascend devices.

The order is: channel swap, crop, colour conversion, mean and factor, padding. Results are half precision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from occ.compiler.ge_simulator.reader import BadGraph

Maker = Callable[[np.ndarray], np.ndarray]


def makers(text: str) -> dict[int, Maker]:
    """The AIPP functions of the configured inputs, by index."""
    found: dict[int, Maker] = {}
    for body in re.findall(r"aipp_op\s*\{(.*?)\}", re.sub(r"#.*", "", text), re.S):
        keys = dict(re.findall(r"(\w+)\s*:\s*(\S+)", body))
        found[int(keys.get("related_input_rank", 0))] = _maker(keys)
    return found


def _maker(keys: Mapping[str, str]) -> Maker:
    def number(name: str, default: float = 0) -> float:
        return float(keys.get(name, default))

    def is_on(name: str) -> bool:
        return keys.get(name, "false").lower() in ("true", "1")

    def make(x: np.ndarray) -> np.ndarray:
        pixels = _pixels(x, keys["input_format"], swap=is_on("rbuv_swap_switch"))
        if is_on("crop"):
            top, left = int(number("load_start_pos_h")), int(number("load_start_pos_w"))
            height, width = int(number("crop_size_h")), int(number("crop_size_w"))
            pixels = pixels[:, :, top : top + height, left : left + width]
        if is_on("csc_switch"):
            pixels = _converted(pixels, number)
        channels = [
            (pixels[:, k] - number(f"mean_chn_{k}") - number(f"min_chn_{k}")) * number(f"var_reci_chn_{k}", 1)
            for k in range(pixels.shape[1])
        ]
        made = np.stack(channels, 1).astype(np.float16)
        if is_on("padding"):
            sides = [
                [int(number(f"{s}_padding_size")) for s in pair] for pair in (("top", "bottom"), ("left", "right"))
            ]
            made = np.pad(made, [(0, 0), (0, 0), *sides], constant_values=np.float16(number("padding_value")))
        return made

    return make


def _pixels(x: np.ndarray, kind: str, *, swap: bool) -> np.ndarray:
    """Pictures of bytes as planes [N, C, H, W] of integers."""
    if x.dtype != np.uint8:
        raise BadGraph(f"AIPP takes bytes, not {x.dtype}")
    wide = x.astype(np.int64)
    if kind == "YUV420SP_U8":
        rows = x.shape[1] * 2 // 3
        colours = wide[:, rows:].reshape(x.shape[0], rows // 2, x.shape[2] // 2, 2)
        u, v = (np.repeat(np.repeat(colours[..., k], 2, 1), 2, 2) for k in ((1, 0) if swap else (0, 1)))
        return np.stack([wide[:, :rows], u, v], 1)
    planes = np.moveaxis(wide, -1, 1)
    return planes[:, ::-1] if swap and kind == "RGB888_U8" else planes


def _converted(pixels: np.ndarray, number: Callable[..., float]) -> np.ndarray:
    """Colours by the matrix, in 256ths, as bytes again."""
    matrix = np.array([[int(number(f"matrix_r{r}c{c}")) for c in range(3)] for r in range(3)])
    before, after = (
        np.array([int(number(f"{s}_bias_{k}")) for k in range(3)]).reshape(1, 3, 1, 1) for s in ("input", "output")
    )
    sums = np.einsum("rc,nchw->nrhw", matrix, pixels - before)
    return np.clip((sums >> 8) + after, 0, 255)
