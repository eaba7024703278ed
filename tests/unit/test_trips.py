"""How often a Loop runs: what inference reads off its condition is what onnxruntime does."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.dim import Dim, evaluate
from occ.compiler.ir.module import Module

# `k` counts from `first` by `step`; `more` says whether another iteration follows, `c` whether the first one runs.
LOOP = """g (float[n] x) => (int64[u] seen) {{
    first = Constant <value = int64 {{{first}}}> ()
    size = Shape (x)
    axis = Constant <value = int64 {{0}}> ()
    bound = Gather (size, axis)
    three = Constant <value = int64 {{3}}> ()
    yes = Constant <value = bool {{1}}> ()
    {before}
    last, seen = Loop ({limit}, {start}, first) <body = body (int64 i, bool going, int64 k) => (bool more, int64 next, int64 out) {{
        step = Constant <value = int64 {{{step}}}> ()
        next = Add (k, step)
        out = Identity (k)
        {after}
    }}>
}}"""


def loop(after: str, before: str = "", *, limit: str = "", start: str = "", first: int = 0, step: int = 1) -> str:
    return LOOP.format(after=after, before=before, limit=limit, start=start, first=first, step=step)


LESS = "c = Less (first, bound)"
COUNTED = {
    "limit": loop("more = Identity (going)", limit="bound"),
    "limit and condition": loop("more = Less (next, bound)", LESS, limit="three", start="c"),
    "less": loop("more = Less (next, bound)", LESS, start="c"),
    "at least once": loop("more = Less (next, bound)"),
    "at least once, says a constant": loop("more = Less (next, bound)", start="yes"),
    "steps of two": loop("more = Less (next, bound)", LESS, start="c", step=2),
    "from three on": loop("more = Less (next, bound)", LESS, start="c", first=3),
    "up to": loop("more = LessOrEqual (next, bound)", "c = LessOrEqual (first, bound)", start="c"),
    "swapped": loop("more = Greater (bound, next)", "c = Greater (bound, first)", start="c"),
    "downwards": loop("more = Greater (next, bound)", "c = Greater (first, bound)", start="c", first=4, step=-1),
    "the number of the iteration": loop("more = Less (i, three)", limit="bound"),
    "two conditions": loop(
        "a = Less (next, bound)  b = Less (i, three)  more = And (a, b)", LESS, start="c",
    ),
    "in floats": loop(
        "f = Cast <to = 1> (next)  b = Cast <to = 1> (bound)  more = Less (f, b)",
        "ff = Cast <to = 1> (first)  fb = Cast <to = 1> (bound)  c = Less (ff, fb)", start="c",
    ),
    "as it went on": loop("a = Less (next, bound)  more = And (going, a)", LESS, start="c"),
}  # fmt: skip
UNKNOWN = {
    "grows faster": loop("d = Mul (k, step)  more = Less (d, bound)", LESS, start="c"),
    "another start": loop("more = Less (next, bound)", "c = Less (three, bound)", start="c"),
    "never ends": loop("more = LessOrEqual (k, next)", limit=""),
    "not a comparison": loop("e = Equal (next, bound)  more = Not (e)", limit=""),
}


def length(text: str) -> tuple[Module, Dim]:
    """A model, inferred, and the length of what its loop gathers."""
    m = Compilation(model_of(text, opset=18), Settings("interp")).advance("inferred")
    return m, m.main.results[0].tensor.dims[0]


@pytest.mark.parametrize("case", COUNTED)
def test_iterations_are_counted(case: str):
    m, found = length(COUNTED[case])
    assert not any(info.is_data for info in m.symbols.values())
    peer = onnxruntime.InferenceSession(model_of(COUNTED[case], opset=18).SerializeToString())
    for n in range(7):
        (want,) = peer.run(None, {"x": np.zeros(n, np.float32)})
        assert evaluate(found, {"n": n}) == len(want), n


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_only_a_run_decides_is_left_to_it(case: str):
    m, _ = length(UNKNOWN[case])
    assert any(info.is_data for info in m.symbols.values())
