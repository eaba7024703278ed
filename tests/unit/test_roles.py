"""Roles of te stages: schedules ask what a stage is, and never what it is called."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import machines
import pytest

import occ.compiler
from occ.compiler.frontend.text import parse
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.te.printer import te_text
from occ.compiler.ir.te.roles import ATTENTION, CONV, PAD, STRASSEN, WINOGRAD
from occ.compiler.ir.te.verify import te_problems
from occ.compiler.passes.base import Context
from occ.compiler.passes.lower.schedule import scheduled
from occ.compiler.passes.manager import Manager
from occ.compiler.passes.registry import parse_pipeline
from occ.compiler.targets.machine import Machine
from occ.compiler.targets.registry import get_target

PRODUCT = """module @m {stage="scheduled"} {
  te @f[N](%x: f32[N,64], %w: f32[64,32]) -> (y: f32[N,32]) {
    NAME[i<N, j<32] = sum[r<64](%x[i, r] * %w[r, j])
    y[a<N, b<32] = NAME[a, b] + 1.0
  }
}"""
MODULE = """module @m {{stage="layout", target="cpu"}} {{
  func @main({params}) -> {result} as "y" {{
    {ops}
    return %y
  }}
}}"""
METHODS = {
    "winograd": (
        WINOGRAD,
        "%x: f32[1,64,12,12]@acdb, %w: f32[36,64,64]@Cab16c", "f32[1,64,12,12]@acdb",
        "%y = winograd(%x, %w) {kernel_shape=[3, 3], pads=[1,1,1,1]} : f32[1,64,12,12]@acdb",
    ),
    "strassen": (
        STRASSEN,
        "%x: f32[64,64], %w: f32[4,32,64]@Cab32c", "f32[64,128]",
        "%y = strassen(%x, %w) {rows=32, width=32} : f32[64,128]",
    ),
    "attend": (
        ATTENTION,
        "%q: f32[2,16,8], %k: f32[2,8,16], %v: f32[2,16,8]", "f32[2,16,8]",
        """%y = fuse(%q, %k, %v) {kind="attention"} : f32[2,16,8]
      do (%q.1: f32[2,16,8], %k.1: f32[2,8,16], %v.1: f32[2,16,8]) {
        %s = attend_scores(%q.1, %k.1) {scale=0.25} : f32[2,16,16]
        %y.1 = attend(%s, %v.1) {rows="plain"} : f32[2,16,8]
        yield %y.1
      }""",
    ),
}  # fmt: skip


def lowered(method: str) -> TeFunc:
    _, params, result, ops = METHODS[method]
    m = parse(MODULE.format(params=params, result=result, ops=ops))
    Manager(verify=True).run(m, parse_pipeline("lower-te"), Context(get_target("cpu"), machines.named("x86-64-v4")))
    (f,) = m.te.values()
    return f


def renamed(f: TeFunc, name: str) -> TeFunc:
    """The function with its stages called `name0`, `name1`, ..., and their roles."""
    text = te_text(f)
    for k, s in enumerate(f.stages):
        text = re.sub(rf"\b{s.name}\b", f"{name}{k}", text)
    return parse(f'module @m {{stage="scheduled"}} {{ {text} }}').te[f.name]


def choices(f: TeFunc, machine: Machine) -> list[tuple[int, str]]:
    """The directives of a function's schedule, without the names of stages and axes in their arguments."""
    place = {s.name: k for k, s in enumerate(f.stages)}
    made = scheduled(f, machine)
    assert not list(te_problems(made))
    return [(place.get(d.stage, -1), d.call) for d in made.schedule]


@pytest.mark.parametrize("machine", machines.TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_methods_are_found_by_roles(method, machine):
    f, on = lowered(method), machines.named(machine)
    roles = METHODS[method][0]
    assert {*roles.values()} <= {*f.by_role}
    assert choices(renamed(f, "x"), on) == choices(f, on)
    bare = replace(f, stages=tuple(replace(s, role="") for s in f.stages))
    assert choices(bare, on) != choices(f, on)


@pytest.mark.parametrize("machine", machines.TARGETS)
@pytest.mark.parametrize("name", ["convex", "pad_x", "winograd_sum", "attend_top_1", "strassen_left"])
def test_the_name_of_a_stage_does_not_change_a_schedule(name, machine):
    on = machines.named(machine)
    plain, other = (parse(PRODUCT.replace("NAME", n)).te["f"] for n in ("product", name))
    assert "specialize" in {call for _, call in choices(plain, on)}  # a second schedule, for few rows
    assert choices(other, on) == choices(plain, on)


@pytest.mark.parametrize("machine", machines.TARGETS)
def test_a_border_is_known_by_its_role(machine):
    on = machines.named(machine)
    f = lowered("winograd")
    named = [s.name for s in f.stages if getattr(s, "role", "") == PAD]
    assert named
    without = replace(f, stages=tuple(replace(s, role="") if s.name in named else s for s in f.stages))
    assert choices(without, on) != choices(f, on)


@pytest.mark.parametrize("machine", machines.TARGETS)
def test_sums_of_a_convolution_have_no_second_schedule(machine):
    f = parse(PRODUCT.replace("NAME", "acc")).te["f"]
    window = replace(f, stages=(replace(f.stages[0], role=CONV), f.stages[1]))
    assert "specialize" not in {call for _, call in choices(window, machines.named(machine))}


def test_roles_are_text():
    text = PRODUCT.replace("NAME", "acc").replace("%w[r, j])", '%w[r, j]) role(conv) loc("Conv")')
    m = parse(text)
    stage = m.te["f"].stages[0]
    assert (stage.role, stage.note) == (CONV, "Conv")
    assert module_text(parse(module_text(m))) == module_text(m)
    assert stage != replace(stage, role="")


def test_an_unknown_role_is_an_error():
    f = parse(PRODUCT.replace("NAME", "acc").replace("%w[r, j])", "%w[r, j]) role(cnov)")).te["f"]
    assert list(te_problems(f)) == ["te @f: acc has the role cnov, which no schedule uses"]


def test_nothing_reads_the_names_of_stages():
    root = Path(occ.compiler.__path__[0])
    files = [
        f
        for p in ("passes/schedule", "passes/methods", "passes/te", "ir/te", "codegen_llvm", "codegen_halide")
        for f in (root / p).rglob("*.py")
    ]
    assert len(files) > 40
    reads = re.compile(r"\b(name|source|stage)\.(starts|ends)with\(|\bre\.\w+\([^)]*\.name")
    assert not [f"{f.name}: {line}" for f in files for line in f.read_text().splitlines() if reads.search(line)]
