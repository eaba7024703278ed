"""`dataclass` as in the standard library, with methods that are compiled when they are first called.

The standard decorator compiles up to six functions a class, 0.5 ms. A build imports 230 such classes, makes instances
of half, and compares or prints few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")
_Text = Callable[[type, dict[str, Any]], str]  # the text of a method; it may add to the names that the text refers to


@overload
def dataclass(cls: type[T], /) -> type[T]: ...


@overload
def dataclass(*, frozen: bool = False, eq: bool = True, slots: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, slots: bool = False) -> Any:
    """The standard decorator but for `InitVar` and ordering. Classes with slots are left to it."""
    if slots:
        return dataclasses.dataclass(frozen=frozen, eq=eq, slots=True)
    return _completed(cls, False, True) if cls is not None else lambda cls: _completed(cls, frozen, eq)


def _completed(cls: Any, frozen: bool, eq: bool) -> Any:
    cls.__doc__ = cls.__doc__ or cls.__name__  # without one, the standard decorator inspects the signature
    below = any(b.__dataclass_params__.frozen for b in cls.__mro__[1:] if hasattr(b, "__dataclass_params__"))
    # It finds the fields, and, where a frozen class is below another, compiles what prevents assignments.
    dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen and below)(cls)
    cls.__dataclass_params__.frozen = frozen
    if frozen and not below:
        _freeze(cls)
    _add(cls, "__init__", _init)
    if "__repr__" not in vars(cls):
        cls.__repr__ = _repr
    if eq:
        _add(cls, "__eq__", _eq)
    if eq and frozen:
        _add(cls, "__hash__", _hash)
    elif eq and "__hash__" not in vars(cls):
        cls.__hash__ = None
    return cls


def _freeze(cls: Any) -> None:
    """Prevent assignments to fields, and to anything else but in a subclass that is no dataclass."""
    names = cls.__dataclass_fields__.keys()

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__


def _add(cls: type, name: str, text: _Text) -> None:
    """Add a method that its first call compiles, unless the class has one."""
    if vars(cls).get(name) is not None:  # None is the `__hash__` of a class that only has an `__eq__`
        return

    def first(self: Any, *args: Any, **named: Any) -> Any:
        known: dict[str, Any] = {}
        exec(text(cls, known), known)
        known[name].__qualname__ = first.__qualname__  # errors about arguments name it
        setattr(cls, name, known[name])
        return known[name](self, *args, **named)

    first.__name__, first.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, first)


def _init(cls: Any, known: dict[str, Any]) -> str:
    """`def __init__(self, a, *, b=b_default): self.a = a; ..`."""
    known |= {"MISSING": MISSING, "put": object.__setattr__}
    plain: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for f in fields(cls):
        name, value = f.name, f.name
        default = ""
        if f.default is not MISSING:
            known[f"{name}_default"], default = f.default, f"={name}_default"
        elif f.default_factory is not MISSING:
            known[f"{name}_made"], default = f.default_factory, "=MISSING"
            value = f"{name}_made() if {name} is MISSING else {name}" if f.init else f"{name}_made()"
        if f.init:
            (named if f.kw_only else plain).append(name + default)
        if f.init or f.default_factory is not MISSING:
            lines.append(
                f"put(self, {name!r}, {value})" if cls.__dataclass_params__.frozen else f"self.{name} = {value}"
            )
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    return f"def __init__({parameters}):\n " + "\n ".join(lines or ["pass"])


def _eq(cls: Any, known: dict[str, Any]) -> str:
    names = [f.name for f in fields(cls) if f.compare]
    mine, other = (f"({''.join(f'{of}.{n}, ' for n in names)})" for of in ("self", "other"))
    return (
        f"def __eq__(self, other):\n return {mine} == {other} if other.__class__ is self.__class__ else NotImplemented"
    )


def _hash(cls: Any, known: dict[str, Any]) -> str:
    names = [f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self):\n return hash(({''.join(f'self.{n}, ' for n in names)}))"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"
