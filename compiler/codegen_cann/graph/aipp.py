"""Static AIPP: image preprocessing on the device, configured as for `atc --insert_op_conf`.

The configuration is text: `aipp_op { key: value ... }`, one per input. `atc` inserts an operator in front of the graph,
and the input of the compiled model is the picture: bytes in the configured format. The checks here cover what would
otherwise only fail there, or only show in the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from occ.compiler.diagnostics import CompileError, closest, error
from occ.runtime.dataclass import dataclass

_CHANNELS = {"YUV420SP_U8": 3, "RGB888_U8": 3, "YUV400_U8": 1}
_SWITCHES = ("crop", "padding", "csc_switch", "rbuv_swap_switch", "resize", "ax_swap_switch", "single_line_mode")
_WHOLE = (
    "related_input_rank", "input_edge_idx", "src_image_size_w", "src_image_size_h", "load_start_pos_w",
    "load_start_pos_h", "crop_size_w", "crop_size_h", "left_padding_size", "right_padding_size", "top_padding_size",
    "bottom_padding_size",
    "resize_output_w", "resize_output_h", "max_src_image_size",
    *(f"matrix_r{r}c{c}" for r in range(3) for c in range(3)), *(f"input_bias_{k}" for k in range(3)),
    *(f"output_bias_{k}" for k in range(3)), *(f"mean_chn_{k}" for k in range(4)),
)  # fmt: skip
_REAL = ("padding_value", *(f"min_chn_{k}" for k in range(4)), *(f"var_reci_chn_{k}" for k in range(4)))
_WORDS = ("aipp_mode", "input_format", "related_input_name")
_OFF = ("resize", "ax_swap_switch", "single_line_mode")  # not checked here, or without effect
_TOKEN = re.compile(r'\s+|#[^\n]*|(?P<op>[{}:])|(?P<word>"[^"\n]*"|[^\s{}:#"]+)')

Value = str | bool | int | float


@dataclass(frozen=True)
class Picture:
    """The image from which AIPP makes an input.

    Attributes:
        keys: of the configuration, as written.
        width, height: of the picture; the input's if the configuration has none.
    """

    keys: Mapping[str, Value]
    width: int
    height: int

    def shape(self, batch: int) -> tuple[int, ...]:
        """The extents of the pictures in bytes: rows of pixels; for YUV420SP the colours follow the rows."""
        if self.keys["input_format"] == "YUV420SP_U8":
            return (batch, self.height * 3 // 2, self.width)
        return (batch, self.height, self.width, _CHANNELS[str(self.keys["input_format"])])

    def text(self, rank: int) -> str:
        """The configuration of one input of a graph."""
        keys = {
            **self.keys,
            "related_input_rank": rank,
            "src_image_size_w": self.width,
            "src_image_size_h": self.height,
        }
        keys.pop("related_input_name", None)
        lines = [f"    {k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in keys.items()]
        return "\n".join(["aipp_op {", *lines, "}", ""])


def pictures(path: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Picture]:
    """The inputs that a configuration applies to.

    Args:
        path: of the configuration.
        shapes: of the inputs of the model by name, in order.

    Raises:
        CompileError: OCC0603 it cannot be read, or does not match the inputs.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise error("OCC0603", f"`aipp={path}` cannot be read: {e}", help="give a file of UTF-8 text") from None
    found: dict[str, Picture] = {}
    for keys in _operators(text, path):
        name = _input(keys, list(shapes), path)
        if name in found:
            raise _wrong(path, f"it has two `aipp_op` for the input `{name}`", "leave one of them")
        found[name] = _picture(keys, name, shapes[name], path)
    if not found:
        raise _wrong(path, "it has no `aipp_op`", "write one for each input that takes pictures")
    return found


def _wrong(path: str, what: str, remedy: str) -> CompileError:
    return error("OCC0603", f"`aipp={path}`: {what}", help=remedy)


def _operators(text: str, path: str) -> Iterator[dict[str, Value]]:
    """The keys of each `aipp_op`.

    Raises:
        CompileError: OCC0603.
    """
    tokens: list[str] = []
    at = 0
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None:
            raise _wrong(
                path, f"{text[at : at + 20]!r} is not a text of a configuration", "write `key: value` in `aipp_op { }`"
            )
        at = m.end()
        if found := m.group("op") or m.group("word"):
            tokens.append(found)
    while tokens:
        if tokens[0] != "aipp_op" or tokens[1:2] != ["{"] or "}" not in tokens:
            raise _wrong(
                path, f"`{' '.join(tokens[:3])}` begins no `aipp_op {{ ... }}`", "write `key: value` in `aipp_op { }`"
            )
        end = tokens.index("}")
        body, tokens = tokens[2:end], tokens[end + 1 :]
        keys: dict[str, Value] = {}
        while body:
            name, sign, value = (*body[:3], "", "")[:3]
            if sign != ":" or not value or value == ":":
                raise _wrong(path, f"`{' '.join(body[:3])}` is not a `key: value`", "write one `key: value` in a line")
            keys[name] = _value(name, value.strip('"'), path)
            body = body[3:]
        yield keys


def _value(name: str, text: str, path: str) -> Value:
    known = (*_SWITCHES, *_WHOLE, *_REAL, *_WORDS)
    if name not in known:
        raise _wrong(path, f"AIPP has no key `{name}`", closest(name, known) or "see the list in the documents of atc")
    try:
        if name in _SWITCHES:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return int(text) if name in _WHOLE else float(text) if name in _REAL else text
    except (KeyError, ValueError):
        kind = "true or false" if name in _SWITCHES else "an integer" if name in _WHOLE else "a number"
        raise _wrong(path, f"`{name}` is {kind}, not {text!r}", f"write `{name}: ` and {kind}") from None


def _input(keys: Mapping[str, Value], names: list[str], path: str) -> str:
    if name := str(keys.get("related_input_name", "")):
        if name not in names:
            raise _wrong(
                path, f"the model has no input `{name}`", closest(name, names) or f"its inputs are {', '.join(names)}"
            )
        return name
    rank = int(keys.get("related_input_rank", 0))
    if not 0 <= rank < len(names):
        raise _wrong(path, f"`related_input_rank: {rank}` is not an input; the model has {len(names)}", "count from 0")
    return names[rank]


def _picture(keys: Mapping[str, Value], name: str, shape: tuple[int, ...], path: str) -> Picture:
    kind = keys.get("input_format", "")
    if keys.get("aipp_mode", "") != "static":
        raise _wrong(
            path, "`aipp_mode` is not `static`", "occ builds models with static AIPP: the configuration is in the model"
        )
    if kind not in _CHANNELS:
        raise _wrong(path, f"`input_format: {kind}` is not supported", f"known are {', '.join(_CHANNELS)}")
    if on := [k for k in _OFF if keys.get(k)]:
        raise _wrong(path, f"`{on[0]}: true` is not supported", "resize and reorder before the model")
    if len(shape) != 4 or shape[1] != _CHANNELS[str(kind)]:
        what = f"the input `{name}` is {list(shape)}, `{kind}` makes [N, {_CHANNELS[str(kind)]}, H, W]"
        raise _wrong(path, what, "AIPP makes inputs of ONNX models in NCHW")

    def of(key: str) -> int:
        return int(keys.get(key, 0))

    _, _, height, width = shape
    made: list[int] = []
    for side, (begin, end), whole in (("w", ("left", "right"), width), ("h", ("top", "bottom"), height)):
        pads = of(f"{begin}_padding_size") + of(f"{end}_padding_size") if keys.get("padding") else 0
        source, start = of(f"src_image_size_{side}"), of(f"load_start_pos_{side}") if keys.get("crop") else 0
        if not source and keys.get("crop"):
            raise _wrong(path, f"`crop` needs `src_image_size_{side}`", "set the size of the picture")
        source = source or whole - pads
        size = (of(f"crop_size_{side}") or whole - pads) if keys.get("crop") else source
        if start < 0 or size < 1 or start + size > source:
            raise _wrong(
                path,
                f"{size} from {start} on are not within {source} along {side}",
                "crop within the picture",
            )
        if size + pads != whole:
            raise _wrong(
                path, f"it makes {size + pads} along {side}, the input `{name}` has {whole}", "make the sizes equal"
            )
        if kind == "YUV420SP_U8" and (source % 2 or start % 2):
            raise _wrong(path, f"sizes and positions of YUV420SP_U8 are even, not {source} and {start}", "round them")
        made.append(source)
    return Picture(keys, *made)
