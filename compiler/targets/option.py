"""Options of targets: `-C key=value`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from functools import cache
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from occ.compiler.diagnostics import error
from occ.compiler.objects.processors import default_target
from occ.compiler.targets.machine import Machine, machine_of
from occ.runtime.dataclass import dataclass

_BOOLS = ("true", "false", "on", "off", "1", "0")


@dataclass(frozen=True)
class Option:
    """A `-C` option: its default, allowed values (any if empty), and its effect."""

    default: Any
    choices: tuple[Any, ...] = ()
    doc: str = ""


def option(default: Any, doc: str, *, choices: tuple[Any, ...] = (), key: str = "") -> Any:
    """A field of `Options` that `-C` sets.

    Args:
        default: bool, int or str; `-C` values are converted to its type.
        doc: its effect.
        choices: allowed values, if its type, a bool or a `Literal`, does not define them.
        key: of `-C`, if it differs from the field name.
    """
    return field(default=default, metadata={"doc": doc, "choices": choices, "key": key})


@dataclass(frozen=True)
class Options:
    """The options of a target: a subclass with a field for each, made by `option`.

    A target holds the defaults; `read` returns those of a compilation.
    """

    @property
    def table(self) -> dict[str, Option]:
        """The options by their `-C` keys, with the values of this object as defaults."""
        return {key: self._option(name) for key, name in self._names().items()}

    @property
    def machine(self) -> Machine:
        """The CPU that passes choose for, unless an option names another."""
        return machine_of(default_target())

    @property
    def quick(self) -> bool:
        """Whether the least time to a first result matters more than the speed of the code."""
        return False

    def read(self, target: str, given: Mapping[str, str]) -> Self:
        """These options with the given values.

        Args:
            target: as messages name it.
            given: values by their `-C` keys.

        Raises:
            CompileError: OCC0603 an unknown key, a bad value or an invalid combination; the message lists valid ones.
        """
        names = self._names()
        for key in given:
            if key not in names:
                known = ", ".join(f"`{k}`" for k in names) or "none"
                raise error("OCC0603", f"target `{target}` has no option `{key}`", help=f"options: {known}")
        table = self.table
        made = replace(self, **{names[key]: _converted(key, table[key], value) for key, value in given.items()})
        made.check()
        return made

    def check(self) -> None:
        """Reject invalid combinations of options; for subclasses to override.

        Raises:
            CompileError: OCC0603.
        """

    def _names(self) -> dict[str, str]:
        """The fields that are options, by their `-C` keys."""
        return {f.metadata["key"] or f.name: f.name for f in fields(self) if "doc" in f.metadata}

    def _option(self, name: str) -> Option:
        metadata = self._metadata(name)
        hint = _hints(type(self))[name]
        literal = get_args(hint) if get_origin(hint) is Literal else _BOOLS if hint is bool else ()
        return Option(getattr(self, name), metadata["choices"] or literal, metadata["doc"])

    def _metadata(self, name: str) -> Mapping[str, Any]:
        (found,) = (f for f in fields(self) if f.name == name)
        return found.metadata


@cache
def _hints(options: type) -> Mapping[str, Any]:
    """The types of fields; evaluating their annotations costs more than reading a small model."""
    return get_type_hints(options)


def _converted(key: str, option: Option, value: Any) -> Any:
    if option.choices == _BOOLS:
        value = str(value).lower()  # as Python and onnxruntime spell them, too
    if str(value) in option.choices:
        value = str(value)  # numbers, too
    if option.choices and value not in option.choices:
        choices = ", ".join(map(str, option.choices))
        raise error("OCC0603", f"option `{key}` cannot be `{value}`", help=f"one of: {choices}")
    if isinstance(option.default, bool):
        return value in ("true", "on", "1")
    if isinstance(option.default, int):
        try:
            return int(value)
        except ValueError:
            raise error("OCC0603", f"option `{key}` takes a number, not `{value}`") from None
    return value
