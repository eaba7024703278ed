"""Gears: one compiled graph for a few sets of extents of its symbolic dims; `mapping/merge.py` makes that graph."""

from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.diagnostics import error, shorten
from occ.compiler.ir.dim import Sym
from occ.compiler.ir.module import Module
from occ.compiler.ir.types import TensorType

_MOST = 100


def _unknown(m: Module, axes: Sequence[int] | None = None) -> list[str]:
    """Symbols of the inputs in order, one entry for each unknown extent; of some axes only."""
    found: list[str] = []
    for arg in m.main.args:
        assert isinstance(arg.type, TensorType), "inputs are tensors"
        for k, d in enumerate(arg.type.dims):
            if isinstance(d, Sym):
                if axes is not None and k not in axes:
                    raise error(
                        "OCC0305", f"axis {k} of the input `{shorten(arg.name)}` is symbolic too",
                        help="fix it with --dim or --shape, or use `dynamic_dims`",
                    )  # fmt: skip
                found.append(str(d))
    return found


def gears(m: Module, options: AscendOptions) -> list[dict[str, int]]:
    """Values of the symbols of each gear.

    Raises:
        CompileError: OCC0603 the option does not fit the symbolic dims; OCC0305 other dims are symbolic as well.
    """
    key = options.gears
    given: str = getattr(options, key)
    rows = [[_number(key, v) for v in row.split(",")] for row in given.strip(";").split(";")]
    if key == "dynamic_batch_size":
        symbols, rows = _unknown(m, (0,))[:1], [[v] for v in rows[0]]
    else:
        symbols = _unknown(m, (2, 3) if key == "dynamic_image_size" else None)
    if not symbols or any(len(row) != len(symbols) for row in rows):
        raise error(
            "OCC0603", f"`{key}={given}` does not fit the symbolic extents of the inputs: {', '.join(symbols) or 'none'}",
            help="give one value for each, in this order, and `;` between gears",
        )  # fmt: skip
    if not 2 <= len(rows) <= _MOST:
        raise error("OCC0603", f"`{key}` takes 2 to {_MOST} gears, not {len(rows)}", help="with one gear, use --dim")
    made = [dict(zip(symbols, row, strict=True)) for row in rows]
    for gear, row in zip(made, rows, strict=True):
        if any(gear[s] != v for s, v in zip(symbols, row, strict=True)):
            raise error("OCC0603", f"`{key}` gives one symbol two values in one gear: {row}", help="repeat its value")
    return made


def _number(key: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise error("OCC0603", f"option `{key}` takes numbers from 1, not `{shorten(text)}`")
    return int(text)


def arguments(m: Module, options: AscendOptions) -> list[str]:
    """The arguments of atc for the gears of a model.

    Raises:
        CompileError: OCC0305 the name of an input cannot stand in an argument of atc.
    """
    key = options.gears
    if not key:
        return []
    shapes: list[str] = []
    for arg in m.main.args:
        if set(arg.name) & set(':;,"') or not arg.name.isprintable():
            raise error(
                "OCC0305", f"atc takes no gears for an input named `{shorten(arg.name)}`", help="rename the input"
            )
        shapes.append(f"{arg.name}:{','.join(str(d) if isinstance(d, int) else '-1' for d in arg.tensor.dims)}")
    made = [f"--input_shape={';'.join(shapes)}", f"--{key}={getattr(options, key)}"]
    return [*made, f"--input_format={'NCHW' if key == 'dynamic_image_size' else 'ND'}"]
