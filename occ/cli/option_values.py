"""Parses the values of --shape, --dim and other options of the form NAME=VALUE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from occ.compiler.frontend.signature import Bounds


def pairs(values: Sequence[str], option: str, *, keys: bool = False, once: bool = False) -> dict[str, str]:
    """`NAME=VALUE` options; names of a model may contain `=`, values may not; with `keys` it is the other way round.

    Raises:
        click.UsageError: one is malformed; or, with `once`, a name occurs twice.
    """
    made: dict[str, str] = {}
    for text in values:
        name, sign, value = text.partition("=") if keys else text.rpartition("=")
        if not sign or not name:
            raise click.UsageError(f"{option} takes NAME=VALUE, not {text!r}")
        if once and name in made:
            raise click.UsageError(f"{option} is given twice for {name!r}")
        made[name] = value
    return made


def shapes_of(values: Sequence[str]) -> dict[str, list[int | str]]:
    """`--shape x=1,3,h,w`."""
    return {
        name: [_extent(part.strip()) for part in value.split(",") if part.strip()]
        for name, value in pairs(values, "--shape").items()
    }


def sizes_in_turn(shapes: Sequence[str], dims: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """The values of --shape and --dim: for the general plan, then for each specialised plan.

    A value given once applies to all of them.

    Raises:
        click.UsageError: two inputs or dims with several sizes have different numbers of them.
    """
    given: dict[tuple[str, str], list[str]] = {}
    for option, values in (("--shape", shapes), ("--dim", dims)):
        for value in values:
            (name,) = pairs([value], option)
            given.setdefault((option, name), []).append(value)
    several = {key: values for key, values in given.items() if len(values) > 1}
    counts = {len(values) for values in several.values()}
    if len(counts) > 1:
        listed = ", ".join(f"{option} {name} has {len(v)}" for (option, name), v in several.items())
        raise click.UsageError(f"repeated sizes of several options belong together, one of each per plan: {listed}")
    once = {key: values[0] for key, values in given.items() if key not in several}
    plans = [once, *(once | {key: values[k] for key, values in several.items()} for k in range(max(counts, default=0)))]
    return [
        ([v for (o, _), v in p.items() if o == "--shape"], [v for (o, _), v in p.items() if o == "--dim"])
        for p in plans
    ]


def _extent(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def dims_of(values: Sequence[str]) -> dict[str, int]:
    """The sizes of `--dim batch=4`; bounds are not sizes."""
    made: dict[str, int] = {}
    for name, value in pairs(values, "--dim").items():
        if ".." not in value:
            if not value.isdigit():
                raise click.UsageError(f"--dim takes NAME=NUMBER or NAME=LEAST..MOST:STEP, not {name}={value}")
            made[name] = int(value)
    return made


def bounds_of(values: Sequence[str]) -> dict[str, Bounds]:
    """The bounds of `--dim height=32..1280:32`."""
    from occ.compiler.frontend.signature import Bounds

    try:
        return {n: Bounds.read(v) for n, v in pairs(values, "--dim").items() if ".." in v}
    except ValueError as e:
        raise click.UsageError(f"--dim: {e}") from None
