"""Passes on text: each file of this folder has one behaviour, a pipeline, a module before it and a module after it.

    # -p fold,dce -t cpu-jit
    # What the file shows.
    module ... {}
    # -->
    module ... {}

Every text is run for each machine of `machines.TARGETS`, whatever the machine is that runs the tests. Where they differ, arrows name
the machines; the module of the first is whole, of the others the lines that differ from it:

    # --> x86-64-v4
    module ... {}
    # --> x86-64-v3
    -  xi = split(x, 16)
    +  xi = split(x, 8)
    # --> x86-64-v2 arm-64
    ...

`--on sapphirerapids` in the first line runs a text for another processor instead.

`pytest tests/passes --update` writes what follows the arrow again; read the difference before you keep it. What can be
interpreted is: before and after must compute the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
import machines
import numpy as np
import onnx
import pytest

from occ.compiler.driver.plugins import extensions
from occ.compiler.frontend.text import parse
from occ.compiler.interp.graph import Interpreter
from occ.compiler.ir.dim import evaluate, symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import module_text, weight_offsets
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.manager import Manager
from occ.compiler.passes.registry import PASSES, parse_pipeline
from occ.compiler.targets.registry import get_target
from occ.runtime.errors import RunError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(HERE.glob("*.occ"))
ARROW = "# -->"


class Header(NamedTuple):
    """The first line of a test: a pipeline, a target, a file of rules, and the machines that it is run for."""

    passes: str
    target: str
    rules: str | None
    machines: tuple[str, ...]


@click.command()
@click.option("-p", "passes", required=True)
@click.option("-t", "target", default="cpu")
@click.option("--rules", default=None)
@click.option("--on", default=None)
def _header(passes: str, target: str, rules: str | None, on: str | None) -> Header:
    return Header(passes, target, rules, (on,) if on else tuple(machines.TARGETS))


def read(file: Path) -> tuple[str, Header, str, str]:
    """(comments, header, text before, from the first arrow on) of a test."""
    before, arrow, after = file.read_text().partition(ARROW)
    comments, text = re.match(r"((?:#[^\n]*\n)+)(.*)", before, re.DOTALL).groups()
    how = _header.main(shlex.split(comments.splitlines()[0].removeprefix("#")), standalone_mode=False)
    return comments, how, text, f"{arrow}{after}"


def sections(after: Mapping[str, str]) -> Iterator[str]:
    """What a file has after the text before: from the text after for each machine."""
    first = next(iter(after.values()))
    for text in dict.fromkeys(after.values()):
        names = "".join(f" {n}" for n, other in after.items() if other == text) if {*after.values()} != {text} else ""
        yield f"{ARROW}{names}\n{text if text == first else changed_lines(first, text)}"


def changed_lines(first: str, text: str) -> str:
    """The lines that differ, groups of them apart."""
    lines = unified_diff(first.splitlines(), text.splitlines(), n=0, lineterm="")
    return "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in list(lines)[3:])


def results(m: Module, seed: int) -> list[np.ndarray]:
    """What a module computes from seeded inputs, its symbols at small values."""
    rng = np.random.default_rng(seed)
    names = dict.fromkeys(s for a in m.main.args for d in a.tensor.dims for s in symbols(d))
    env = {name: int(rng.integers(1, 5)) for name in names}
    inputs = []
    for a in m.main.args:
        shape = tuple(evaluate(d, env) for d in a.tensor.dims)
        kind = a.tensor.dtype.numpy
        x = rng.integers(0, 3, shape) if kind.kind in "iub" else rng.standard_normal(shape)
        inputs.append(x.astype(kind))
    try:
        return Interpreter(m).run(inputs, env)
    except RunError as e:
        return [np.array(e.code)]


def same(a: np.ndarray, b: np.ndarray) -> None:
    if a.dtype.kind == "U":
        assert a == b
    else:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_pass(file, request):
    comments, how, text, after = read(file)
    made = {name: changed(text, *how[:3], name) for name in how.machines}
    texts = {name: module_text(m) for name, m in made.items()}
    got = "".join(sections(texts))
    if request.config.getoption("--update"):
        file.write_text(f"{comments}{module_text(parse(text))}{got}")
        after = got
    assert got == after
    for m in {t: made[name] for name, t in texts.items()}.values():
        written = module_text(m)
        assert module_text(parse(written, weights=[m.weights[n].data for n in weight_offsets(m)])) == written
        if m.stage != "imported" and all(op.spec.operator in onnx_names() for op in m.main.body.body):
            for seed in (0, 1):
                for a, b in zip(results(parse(text), seed), results(m, seed), strict=True):
                    same(a, b)


def changed(text: str, passes: str, target: str, rules: str | None, machine: str) -> Module:
    """A module after the passes, for a machine."""
    m = parse(text)
    own = extensions([str(HERE / rules)] if rules else []).rules
    context = Context(get_target(target), machines.named(machine), rules=tuple(own))
    Manager(verify=True).run(m, parse_pipeline(passes), context, typed=m.stage != "imported")
    return m


@cache
def onnx_names() -> set[str]:
    """Operators that can be interpreted: those of ONNX, and the regions that hold them."""
    return {s.name for s in onnx.defs.get_all_schemas()} | {"fuse", "dims"}


def test_every_pass_of_occ_has_a_name_that_is_read():
    """A file that is named like a pass is that pass."""
    found: dict[str, type[Pass]] = {}
    for path in (ROOT / "compiler/passes").rglob("*.py"):
        module = import_module(
            "occ." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
        kinds = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Pass) and v is not Pass]
        found |= {v.name: v for v in kinds if v.__module__ == module.__name__}
        assert all(v.name.replace("-", "_") == path.stem for v in kinds if v.__module__ == module.__name__), path
    assert found == dict(PASSES)


def test_every_pass_has_a_text():
    tested = {p.name for file in FILES for p in parse_pipeline(read(file)[1][0])}
    assert sorted(set(PASSES) - tested) == []
