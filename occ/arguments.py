"""Checks of arguments of the functions of `occ`: sizes, options and lists of names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

from occ.compiler.diagnostics import error

# What is a dict, with an example of one.
_MAPPINGS = {
    "shapes": '{"x": (1, 3, 224, 224)}',
    "dims": '{"batch": 4}',
    "options": '{"optimize": 2}',
    "inputs": '{"x": array}',
}


def names_of(given: Any) -> tuple[Any, ...]:
    """Several names, or paths; one alone may be given without a list, and None is none."""
    if given is None:
        return ()
    return (given,) if isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable) else tuple(given)


def checked_mapping(what: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """An argument that is a dict, or nothing.

    Raises:
        CompileError: OCC0603 it is something else.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise error("OCC0603", f"{what} is {_shown(given)}, not a dict", help=f"{what}={_MAPPINGS[what]}")
    return given


def checked_options(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Options of a target, with values in the spelling of `-C`.

    Raises:
        CompileError: OCC0603 it is not a dict.
    """
    return {str(key): str(value) for key, value in checked_mapping("options", given).items()}


def checked_dims(given: Mapping[str, Any] | None) -> dict[str, int | str]:
    """Values of symbolic dims: whole numbers, or texts of bounds.

    Raises:
        CompileError: OCC0603 it is not a dict; OCC0205 a value is something else.
    """
    return {name: _dim(name, d) for name, d in checked_mapping("dims", given).items()}


def checked_sizes(given: Mapping[str, Any] | None) -> dict[str, int]:
    """Values of symbolic dims for random inputs: whole numbers.

    Raises:
        CompileError: OCC0603 it is not a dict; OCC0205 a value is something else.
    """
    sizes = checked_dims(given)
    for name, size in sizes.items():
        if isinstance(size, str):
            message = f"dims of `{name}` is {size!r}, and inputs have one size"
            raise error("OCC0205", message, help=f"dims={{{name!r}: 4}}")
    return {name: int(size) for name, size in sizes.items()}


def _dim(name: str, given: Any) -> int | str:
    if isinstance(given, str):
        return given
    try:
        value = index(given)
        if value < 0:
            raise TypeError
        return value
    except TypeError:
        help_ = f'dims={{{name!r}: 4}}, or bounds such as "32..1280:32"'
        raise error(
            "OCC0205", f"dims of `{name}` is {_shown(given)}, not a whole number from 0 on", help=help_
        ) from None


def checked_plans(given: Any) -> list[Mapping[str, Any]]:
    """Sizes for each of several plans: extents of inputs, and values of symbolic dims.

    Raises:
        CompileError: OCC0603 they are something else; OCC0205 a size is something else.
    """
    plans = [given] if isinstance(given, Mapping) else list(names_of(given))
    if wrong := [p for p in plans if not isinstance(p, Mapping)]:
        help_ = 'specialise=[{"x": (1, 3, 320, 320)}, {"batch": 8}]'
        raise error("OCC0603", f"specialise has {_shown(wrong[0])}, not a dict of sizes", help=help_)
    return [{name: _sizes(name, given) for name, given in plan.items()} for plan in plans]


def _sizes(name: str, given: Any) -> tuple[int | str, ...] | int | str:
    is_shape = hasattr(given, "__iter__") and not isinstance(given, str)
    return _extents(name, given) if is_shape else _dim(name, given)


def checked_shapes(given: Mapping[str, Any] | None) -> dict[str, Sequence[int | str]]:
    """Extents of inputs: of each a sequence of whole numbers and names.

    Raises:
        CompileError: OCC0603 it is not a dict; OCC0205 extents are something else.
    """
    return {name: _extents(name, e) for name, e in checked_mapping("shapes", given).items()}


def _extents(name: str, given: Any) -> tuple[int | str, ...]:
    help_ = f"shapes={{{name!r}: (1, 3, 224, 224)}}; a name keeps an extent symbolic"
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise error("OCC0205", f"shapes of `{name}` is {_shown(given)}, not a sequence of extents", help=help_)
    try:
        return tuple(e if isinstance(e, str) else index(e) for e in given)
    except TypeError:
        what = f"shapes of `{name}` is {_shown(given)}, whose extents are not all whole numbers or names"
        raise error("OCC0205", what, help=help_) from None


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 40 else f"a {type(given).__name__}"
