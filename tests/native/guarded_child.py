"""Runs between pages that nothing may read, in a process that ends where something does."""

from __future__ import annotations

import multiprocessing

import numpy as np
import onnx

import occ
from occ.compiler.objects.processors import PROCESSORS
from tools.fuzz.guard import all_guarded


def check_guarded(
    model: onnx.ModelProto, cpu: str, feed: dict[str, np.ndarray], want: np.ndarray, target: str = "cpu-jit"
) -> None:
    """Compare the output `y` of a model, compiled for a processor, bit for bit; its inputs are beside guarded pages."""
    session = occ.compile(model, target, options={"halide.target": PROCESSORS.get(cpu, cpu)}, threads=1)

    def run() -> None:
        for side in ("end", "start"):
            np.testing.assert_array_equal(session.run(all_guarded(feed, side))["y"], want, strict=True)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == 0, "wrong, or a read past the end"
