"""Mutation checks: the fuzzers see old faults again when their mends are taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from occ.compiler.codegen_halide import kernels, literals
from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.ops import movement, signal
from occ.compiler.passes.infer import infer_control
from occ.runtime.native import control
from tools.fuzz.generate import Profile, Reject, generate
from tools.fuzz.graphs import MAKERS, WRONG
from tools.fuzz.misfits import WAYS, Misfits
from tools.fuzz.misfits import WRONG as WRONG_MISFITS
from tools.fuzz.run import Runner, outcomes
from tools.fuzz.valid_models import valid_models


def take_back_conditions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(infer_control, "_is_one", lambda *_: None)
    patch.setattr(control, "_one", lambda value, _: np.asarray(value).reshape(-1)[0])


def take_back_expand(patch: pytest.MonkeyPatch) -> None:
    known = movement.broadcast_shapes

    def lax(*shapes: Any, op: str = "") -> Any:
        try:
            return known(*shapes, op=op)
        except Invalid:
            return tuple(shapes[0])

    patch.setattr(movement, "broadcast_shapes", lax)


@pytest.mark.parametrize(("operator", "mutate"), [("If", take_back_conditions), ("Expand", take_back_expand)])
def test_misfits(operator: str, mutate: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = next(k for k, v in enumerate(valid_models()) if [n.op_type for n in v.model.graph.node] == [operator])
    work = Misfits(tmp_path, targets=("interp",))

    def wrong() -> int:
        seeds = [len(WAYS) * number + way for way in range(len(WAYS))]
        every = [(seed, made) for seed in seeds if (made := work.cases(seed)) is not None]
        return sum(o in WRONG_MISFITS for seed, c in every for _, o, _ in work._outcomes(seed, c, lambda _: None))

    assert not wrong()
    mutate(monkeypatch)
    assert wrong()


def test_parts_of_short_time_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a symbolic last extent of 1 is taken for: with the mend taken back, a check refuses sizes that are valid."""
    profile = Profile({"corner.STFT": 1.0}, rest=0, nodes=1, alone=True)

    def wrong() -> int:
        return sum(o.kind in WRONG for case in cases for o in outcomes(Runner(case), ["interp passes"]))

    cases = []
    for seed in range(9010, 9024):
        try:
            cases.append(generate(seed, "corners", profile, MAKERS))
        except Reject:
            continue
    assert not wrong()
    monkeypatch.setattr(signal, "_check_parts", lambda *_: None)
    monkeypatch.setattr(
        signal,
        "_imaginary",
        lambda x, i: None if x.shape[-1] == 1 else signal.cast(signal.F64, x[(*i, signal.wrap(1))]),
    )
    assert wrong()


def test_sizes_that_overflow_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`13421773*w // 2**25`, the extent of a Resize by 0.4: with the mend taken back, kernels compute it as an int."""
    monkeypatch.setattr(kernels, "_text", kernels._text.__wrapped__)  # a text that is known is not emitted again
    profile = Profile({"corner.Resize": 1.0}, rest=0, nodes=1, alone=True)
    cases = [generate(seed, "corners", profile, MAKERS) for seed in (66, 77, 132)]
    options = {"cpu": {"resize": "exact"}}
    assert all(c.options == {"resize": "exact"} for c in cases)

    def wrong() -> int:
        return sum(o.kind in WRONG for case in cases for o in outcomes(Runner(case, options=options), ["cpu"]))

    assert not wrong()
    monkeypatch.setattr(literals, "is_counted", lambda _: True)
    assert wrong()
