"""Numeric option types, whose errors show an example."""

from __future__ import annotations

import re
from typing import Any

import click

_LONGEST = 1e8  # maximum seconds of system timers


class Whole(click.IntRange):
    """A whole number between bounds, inclusive."""

    name = "whole number"


class Number(click.FloatRange):
    """A number between bounds, excluding NaN."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail("NaN has no place in an order", param, ctx) if number != number else number


class Share(Number):
    """A fraction, from 0: `0.01`, or `1%`."""

    name = "number or percentage"

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        percent = isinstance(value, str) and value.endswith("%")
        return super().convert(value[:-1], param, ctx) / 100 if percent else super().convert(value, param, ctx)


class Bytes(Number):
    """An amount of memory: `4e9`, `4GB`, or `4GiB`."""

    name = "number of bytes, such as 4e9, 4GB or 512MiB"

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        unit = re.search(r"(?<=[0-9.])\s*([kmgt])(i?)b?$", value, re.I) if isinstance(value, str) else None
        if unit is None:
            return super().convert(value, param, ctx)
        scale = (1024 if unit[2] else 1000) ** (1 + "kmgt".index(unit[1].lower()))
        return super().convert(value[: unit.start()], param, ctx) * scale


class Seconds(Number):
    """A time that something may take."""

    name = "number of seconds"

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return min(super().convert(value, param, ctx), _LONGEST)
