"""Gears: one compiled graph for several sizes of its symbolic dims (`mapping/merge.py` merges them)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.diagnostics import error, shorten
from occ.compiler.ir.dim import Dim, Sym, evaluate, symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.types import TensorType

_MOST = 100


def _unknown(m: Module, axes: Sequence[int] | None = None) -> list[Sym]:
    """The unknown extents of the inputs in order, or only those of some axes."""
    found: list[Sym] = []
    for arg in m.main.args:
        assert isinstance(arg.type, TensorType), "inputs are tensors"
        for k, d in enumerate(arg.type.dims):
            if isinstance(d, Sym):
                if axes is not None and k not in axes:
                    raise error(
                        "OCC0305",
                        f"axis {k} of the input `{shorten(arg.name)}` is symbolic too",
                        help="fix it with --dim or --shape, or use `dynamic_dims`",
                    )
                found.append(d)
    return found


def gears(m: Module, options: AscendOptions) -> list[dict[str, int]]:
    """Values of the symbols of each gear.

    Raises:
        CompileError: OCC0603 the option does not match the symbolic dims; OCC0305 other dims are symbolic too.
    """
    key = options.gears
    given: str = getattr(options, key)
    listed = [row.split(",") for row in given.strip(";").split(";")]
    if key == "dynamic_dims" and "=" in given:
        return _checked(key, given, [_by_name(m, given, row) for row in listed])
    rows = [[_number(key, v) for v in row] for row in listed]
    if key == "dynamic_batch_size":
        extents, rows = _unknown(m, (0,))[:1], [[v] for v in rows[0]]
    else:
        extents = _unknown(m, (2, 3) if key == "dynamic_image_size" else None)
    if not extents or any(len(row) != len(extents) for row in rows):
        raise error(
            "OCC0603",
            f"`{key}={shorten(given)}` does not fit the symbolic extents of the inputs: "
            f"{', '.join(map(str, extents)) or 'none'}",
            help="list one value for each, in this order, with `;` between gears",
        )
    return _checked(key, given, [_gear(key, extents, row) for row in rows])


def _gear(key: str, extents: Sequence[Sym], row: Sequence[int]) -> dict[str, int]:
    """A gear from values for all unknown extents; an extent that follows from others must agree with them."""
    made = {str(d): v for d, v in zip(extents, row, strict=True) if d.is_symbol}
    for d, v in zip(extents, row, strict=True):
        if symbols(d).keys() <= made.keys() and evaluate(d, made) != v:
            raise error("OCC0603", f"`{key}` has two values for `{d}` in one gear: {list(row)}", help="let them agree")
    return made


def _checked(key: str, given: str, made: list[dict[str, int]]) -> list[dict[str, int]]:
    if not 2 <= len(made) <= _MOST:
        raise error("OCC0603", f"`{key}` takes 2 to {_MOST} gears, not {len(made)}", help="with one gear, use --dim")
    if len({tuple(sorted(gear.items())) for gear in made}) != len(made):
        raise error("OCC0603", f"`{key}={shorten(given)}` has the same gear twice", help="list each set of sizes once")
    return made


def _by_name(m: Module, given: str, row: Sequence[str]) -> dict[str, int]:
    """A gear whose sizes are named after the symbolic dims, such as `past=16,total=17`."""
    labels = {info.label: name for name, info in m.symbols.items()}
    wanted = symbols(*_unknown(m))
    found: dict[str, int] = {}
    for item in row:
        name, _, value = item.rpartition("=")
        symbol = labels.get(name.strip(), name.strip())
        if symbol not in wanted:
            known = ", ".join(m.symbols[s].label for s in wanted) or "none"
            raise error(
                "OCC0603",
                f"`dynamic_dims` names `{shorten(name)}`, which is not a symbolic dim",
                help=f"there are: {known}",
            )
        found[symbol] = _number("dynamic_dims", value)
    if missing := [m.symbols[s].label for s in wanted if s not in found]:
        text = f"the gear `{shorten(','.join(row))}` of `dynamic_dims` leaves {', '.join(missing)} open"
        raise error("OCC0603", text, help="name each of them in every gear, or fix it with --dim")
    return found


def _number(key: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise error("OCC0603", f"option `{key}` takes numbers from 1, not `{shorten(text)}`")
    return int(text)


def _in_order(m: Module, options: AscendOptions) -> str:
    """The gears in atc's form: values in the order of the unknown extents."""
    given: str = getattr(options, options.gears)
    if "=" not in given:
        return given
    order = _unknown(m)
    return ";".join(",".join(str(evaluate(d, gear)) for d in order) for gear in gears(m, options))


def arguments(m: Module, options: AscendOptions) -> list[str]:
    """The arguments of atc for the gears of a model.

    Raises:
        CompileError: OCC0305 the name of an input is not valid in an atc argument.
    """
    key = options.gears
    if not key:
        return []
    shapes = input_shape(m, "gears", lambda d: str(d) if isinstance(d, int) else "-1")
    made = [shapes, f"--{key}={_in_order(m, options)}"]
    return [*made, f"--input_format={'NCHW' if key == 'dynamic_image_size' else 'ND'}"]


def input_shape(m: Module, what: str, extent: Callable[[Dim], str]) -> str:
    """The argument of atc that states the shapes of all inputs.

    Args:
        m: the model.
        what: the feature that needs the argument, for the message.
        extent: an extent in atc's notation.

    Raises:
        CompileError: OCC0305 the name of an input is not valid in an atc argument.
    """
    shapes: list[str] = []
    for arg in m.main.args:
        if set(arg.name) & set(';"') or not arg.name.isprintable():  # the last colon ends a name
            message = f"atc takes no {what} for an input named `{shorten(arg.name)}`"
            raise error("OCC0305", message, help="rename the input")
        shapes.append(f"{arg.name}:{','.join(map(extent, arg.tensor.dims))}")
    return f"--input_shape={';'.join(shapes)}"
