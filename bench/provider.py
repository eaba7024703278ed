"""onnxruntime with occ as execution provider, beside onnxruntime alone and occ alone.

`python bench/provider.py MODEL.onnx ... --threads 1 2`: groups, nodes, the largest difference of outputs as a share of the
largest value, and milliseconds of a run: minima of interleaved blocks. --clock cpu counts processor time, for one thread on a
machine that does other work too; the default is the time that passes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import occ
from occ.benchmark import difference
from occ.inputs import random_inputs

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def sessions(path: str, threads: int) -> tuple[Any, Any, float]:
    """Sessions of onnxruntime with occ and without it, and the seconds that the first took to open."""

    def options() -> Any:
        made = onnxruntime.SessionOptions()
        made.intra_op_num_threads, made.inter_op_num_threads, made.log_severity_level = threads, 1, 3
        made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return made

    start = time.perf_counter()
    ours = onnxruntime.InferenceSession(path, occ.onnxruntime.session_options(options()))
    seconds = time.perf_counter() - start
    return ours, onnxruntime.InferenceSession(path, options(), providers=["CPUExecutionProvider"]), seconds


def assigned(session: Any, ours: int) -> dict[str, int]:
    """Nodes by provider, as onnxruntime reports; before 1.24, which does not report them, those of `ours` that occ says it has taken."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {occ.onnxruntime.NAME: ours}
    found: dict[str, int] = {}
    for part in session.get_provider_graph_assignment_info():
        found[part.ep_name] = found.get(part.ep_name, 0) + len(part.get_nodes())
    return found


def minima(
    runners: dict[str, Callable[[], Any]], rounds: int, seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Milliseconds of the quickest run of each, from `rounds` blocks, and more of them until the seconds are over."""
    best, end = dict.fromkeys(runners, float("inf")), time.perf_counter() + seconds
    while rounds > 0 or time.perf_counter() < end:
        rounds -= 1
        for name, run in runners.items():
            run()
            for _ in range(3):
                start = clock()
                run()
                best[name] = min(best[name], clock() - start)
    return {name: round(seconds * 1e3, 4) for name, seconds in best.items()}


def given(path: Path, folder: Path | None, whole: Any) -> dict[str, Any]:
    """Inputs of a model: FOLDER/PARENT__STEM.npz where it is there, else random ones."""
    stored = folder / f"{path.parent.name}__{path.stem}.npz" if folder else None
    if stored is None or not stored.is_file():
        return dict(random_inputs(whole, {}, np.random.default_rng(0)))
    with np.load(stored) as arrays:
        return {name: arrays[name] for name in arrays.files}


def measured(path: str, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """One row."""
    before = len(occ.onnxruntime.claimed())
    ours, alone, seconds = sessions(path, threads)
    whole = occ.compile(path, threads=threads)
    feeds = given(Path(path), args.inputs, whole)
    got, want = ours.run(None, feeds), alone.run(None, feeds)
    worst = max((difference(np.asarray(a), np.asarray(b)) for a, b in zip(got, want, strict=True)), default=0.0)
    runners = {
        "with": lambda: ours.run(None, feeds),
        "onnxruntime": lambda: alone.run(None, feeds),
        "occ": lambda: whole.run(feeds),
    }
    times = minima(runners, args.rounds, args.seconds, CLOCKS[args.clock])
    taken = occ.onnxruntime.claimed()[before:]
    row = {"model": Path(path).parent.name + "/" + Path(path).name, "threads": threads, "groups": len(taken)}
    return row | {"nodes": assigned(ours, sum(c.nodes for c in taken)), "open": round(seconds, 2), "difference": f"{worst:.1e}", **times,
                  "gain": round(times["onnxruntime"] / times["with"], 3)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5, help="blocks of runs, at the least")
    parser.add_argument("--seconds", type=float, default=0, help="that blocks are repeated for")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument(
        "--inputs", type=Path, help="a folder of inputs, FOLDER__MODEL.npz; else random ones of small sizes"
    )
    args = parser.parse_args()
    occ.onnxruntime.register()
    for threads in args.threads:
        gains: list[float] = []
        for path in args.models:
            try:
                row = measured(path, threads, args)
                gains.append(row["gain"])
            except Exception as e:  # the others are still worth measuring
                row = {"model": path, "threads": threads, "error": f"{type(e).__name__}: {e}"[:300]}
            print(json.dumps(row), flush=True)
        mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 0.0
        print(
            json.dumps(
                {"threads": threads, "models": len(gains), "mean": round(mean, 3), "least": min(gains, default=0.0)}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
