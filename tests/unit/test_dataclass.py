"""`occ.runtime.dataclass` makes what the standard decorator makes, and compiles methods when they are first called."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest

from occ.runtime.dataclass import dataclass

KINDS = [{}, {"frozen": True}, {"eq": False}, {"frozen": True, "eq": False}, {"frozen": True, "slots": True}]


def _point(decorator, **kind):
    @decorator(**kind)
    class Point:
        x: int
        names: list = dataclasses.field(default_factory=list, repr=False)
        y: float = 2.0
        weight: int = dataclasses.field(default=3, compare=False, kw_only=True)
        length: int = dataclasses.field(default=0, init=False)

        def __post_init__(self):
            object.__setattr__(self, "length", len(self.names))

    return Point


def _seen(cls):
    """What can be seen of the class and its instances."""
    made, other, third = cls(1, ["a"]), cls(1, ["a"], weight=4), cls(2, y=5.0)
    text = repr(made).replace(hex(id(made)), "")
    same = (made == other, made == third, made == 1, made != other)
    values = [dataclasses.asdict(v) for v in (made, other, third, dataclasses.replace(third, x=9), copy.deepcopy(made))]
    fields = [(f.name, f.init, f.kw_only) for f in dataclasses.fields(cls)]
    return text, same, values, fields, cls.__match_args__, cls.__hash__ is None, _error(lambda: setattr(made, "x", 2))


def _error(action):
    try:
        action()
    except AttributeError as e:
        return type(e), str(e)
    return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(k) or "plain")
def test_as_the_standard_decorator(kind):
    assert _seen(_point(dataclass, **kind)) == _seen(_point(dataclasses.dataclass, **kind))


@pytest.mark.parametrize(("first", "second"), [(dataclass, dataclasses.dataclass), (dataclasses.dataclass, dataclass)])
def test_frozen_classes_extend_each_other(first, second):
    @first(frozen=True)
    class Base:
        a: int

    @second(frozen=True)
    class Sub(Base):
        b: int = 2

    assert (Sub(1), hash(Sub(1)), Sub(1) == Base(1)) == (Sub(1, 2), hash((1, 2)), False)
    for name in ("a", "b", "c"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(Sub(1), name, 3)
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):
        second(type("Loose", (Base,), {"__annotations__": {"c": int}}))


def test_own_methods_stay():
    @dataclass(frozen=True)
    class Own:
        a: int

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 7

    @dataclass(frozen=True)
    class Half:
        a: int

        def __eq__(self, other):
            return True

    assert (repr(Own(1)), Own(1) == 3, hash(Own(1)), hash(Half(1))) == ("own", True, 7, hash((1,)))


@dataclass(frozen=True)
class Stored:
    """At the top of a module, as pickle needs it."""

    a: int


def test_stored_ones_are_equal():
    assert pickle.loads(pickle.dumps(Stored(4))) == Stored(4)


def test_missing_arguments_are_reported():
    for _ in range(2):  # when the method is compiled, and afterwards
        with pytest.raises(TypeError, match=r"^Stored\.__init__\(\) missing 1 required positional argument: 'a'"):
            Stored()


def test_a_build_imports_without_compiling_methods():
    code = """
import dataclasses
made, create = [], dataclasses._create_fn
dataclasses._create_fn = lambda name, *a, **k: made.append(name) or create(name, *a, **k)
import occ.compiler.driver.compilation, occ.compiler.codegen_halide.pipeline
assert made.count("__init__") < 40, made.count("__init__")
"""
    if hasattr(dataclasses, "_create_fn"):  # Python 3.13 has none
        subprocess.run([sys.executable, "-c", code], check=True)
