"""The registry of operators: the built-in ones by name, and those that users add for one compilation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from occ.compiler.ir.operator.spec import OpSpec


@cache
def builtin() -> Mapping[str, OpSpec]:
    """The operators that occ defines, by name.

    Raises:
        ValueError: two families define the same operator.
    """
    ops = import_module("occ.compiler.ir.ops")  # by name, as their modules import what ops are
    table: dict[str, OpSpec] = {}
    for family in _families(ops.__path__, ops.__name__):
        for spec in import_module(family).ALL:
            if spec.name in table:
                raise ValueError(f"operator {spec.name} is defined twice")
            table[spec.name] = spec
    return MappingProxyType(table)


def family_of(name: str) -> str:
    """The module that defines one of occ's own operators; empty if none does."""
    ops = import_module("occ.compiler.ir.ops")
    families = _families(ops.__path__, ops.__name__)
    return next((f for f in families if any(s.name == name for s in import_module(f).ALL)), "")


def _families(path: Iterable[str], package: str) -> Iterator[str]:
    """The modules of this folder and its subfolders that list operators in `ALL`."""
    for found in iter_modules(path, f"{package}."):
        module = import_module(found.name)
        if found.ispkg:
            yield from _families(module.__path__, found.name)
        elif hasattr(module, "ALL"):
            yield found.name


class Registry(Mapping[str, OpSpec]):
    """The operators of one compilation by name: built-in ones, and those of installed packages and rule files."""

    def __init__(self) -> None:
        self._added: dict[str, OpSpec] = {}
        self._origins: dict[str, str] = {}

    def __getitem__(self, name: str) -> OpSpec:
        return self._added[name] if name in self._added else builtin()[name]

    def __iter__(self) -> Iterator[str]:
        yield from builtin()
        yield from self._added

    def __len__(self) -> int:
        return len(builtin()) + len(self._added)

    def add(self, spec: OpSpec, origin: str) -> None:
        """Add an operator; one from the same origin is replaced.

        Raises:
            ValueError: another operator has its name.
        """
        if spec.name in self and self._origins.get(spec.name) != origin:
            raise ValueError(f"operator `{spec.name}` is already defined by {self._origins.get(spec.name, 'occ')}")
        bound = copy(spec)
        bound.accesses, bound.registry = {}, self
        self._added[spec.name], self._origins[spec.name] = bound, origin

    def origin(self, name: str) -> str:
        """The origin of an operator that is not built in: a rule file, or the entry point of a package."""
        return self._origins[name]

    @property
    def added(self) -> tuple[OpSpec, ...]:
        """The operators that are not built in."""
        return tuple(self._added.values())
