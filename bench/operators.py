"""`bench/operators.py --json FILE`: single operators compared with onnxruntime, at small, medium and large sizes.

Outputs are compared first. Then both run in turns, in short blocks; what counts is the median over the blocks of the least time of a
block: processor time of the calling thread with one thread, wall-clock time with two. The file is written after every row, and a
second run goes on where the first one stopped. `--page docs/reference/operator-speed.md` draws the file as a heat map.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from operator_row import Row
from operator_rows import ROWS

SIZES = ("small", "medium", "large")
KINDS = {
    "float": np.float32, "float16": np.float16, "double": np.float64, "int64": np.int64, "int32": np.int32, "uint32": np.uint32,
    "uint8": np.uint8, "int8": np.int8, "bool": np.bool_,
}  # fmt: skip
TOLERANCES = {np.dtype(np.float16): 1e-2, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-6}
BLOCKS, GROUPS, GROUP = 7, 4, 5e-4  # blocks of each side, timed groups of runs in a block, seconds of a group at least
_INPUT = re.compile(r"(\w+)(?:\[([^]]*)\])? (\w+)")
Clock = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """One row at one size, with an element type, with fixed or symbolic extents."""

    row: Row
    size: str
    kind: str
    symbolic: bool

    @property
    def name(self) -> str:
        return f"{self.row.operator}|{self.kind}|{self.size}|{'symbolic' if self.symbolic else 'fixed'}"

    def extent(self, letter: str) -> int:
        """The extent of a letter, or the number that it is."""
        if letter not in self.row.extents:
            return int(letter)
        given = self.row.extents[letter]
        return given if isinstance(given, int) else given[SIZES.index(self.size)]

    def inputs(self) -> Iterator[tuple[str, str, list[str]]]:
        """Element type, name and letters of the shape of each input."""
        for kind, shape, name in _INPUT.findall(self.row.inputs):
            yield self.kind if kind == "T" else kind, name, [d for d in shape.split(",") if d]

    def model(self) -> tuple[bytes, dict[str, np.ndarray]]:
        """The model, and values of those inputs that are not constants."""
        rng = np.random.default_rng(0)
        values = {name: self._values(rng, kind, name, shape) for kind, name, shape in self.inputs()}
        fixed = {*self.row.weights, *self.row.constants}
        given = ", ".join(
            f"{kind}{self._dims(shape)} {name}"
            for kind, name, shape in self.inputs() if name not in fixed
        )  # fmt: skip
        node = re.sub(r"%(\w)", lambda m: str(self.extent(m[1])), self.row.node)
        graph: onnx.GraphProto = onnx.parser.parse_graph(
            f"row ({given}) => ({node.split('=')[0].strip()}) {{ {node} }}"
        )
        graph.initializer.extend(onnx.numpy_helper.from_array(values[n], n) for n in values if n in fixed)
        opsets = [onnx.helper.make_opsetid("", self.row.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
        made: Any = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return made.SerializeToString(), {n: v for n, v in values.items() if n not in fixed}

    def _dims(self, shape: list[str]) -> str:
        """The shape of an input in ONNX syntax, where a scalar has no brackets."""
        dims = [d if self.symbolic and d.isupper() else str(self.extent(d)) for d in shape]
        return f"[{','.join(dims)}]" if dims else ""

    def _values(self, rng: np.random.Generator, kind: str, name: str, shape: list[str]) -> np.ndarray:
        dtype, dims = np.dtype(KINDS[kind]), tuple(map(self.extent, shape))
        if name in self.row.constants:
            given: Any = self.row.constants[name]
            listed = [self.extent(v) if isinstance(v, str) else v for v in given] if shape else given
            return np.array(listed, dtype)
        if dtype.kind == "b":
            return rng.random(dims) < 0.5
        if name not in self.row.ranges and dtype.kind == "f":
            return rng.standard_normal(dims).astype(dtype)
        bounds = ((-128, 128) if kind == "int8" else (0, 256)) if dtype.itemsize == 1 else (0, 100)
        low, high = (self.extent(b) if isinstance(b, str) else b for b in self.row.ranges.get(name, bounds))
        if dtype.kind == "f":
            return rng.uniform(low, high, dims).astype(dtype)
        return rng.integers(int(low), max(int(high), int(low) + 1), dims).astype(dtype)


def cases(row: Row) -> Iterator[Case]:
    """The first type at all sizes, and symbolic at medium size; the others at medium size."""
    for size in SIZES:
        yield Case(row, size, row.types[0], symbolic=False)
    if any(c.isupper() for _, shape, _ in _INPUT.findall(row.inputs) for c in shape):
        yield Case(row, "medium", row.types[0], symbolic=True)
    for kind in row.types[1:]:
        yield Case(row, "medium", kind, symbolic=False)


def main() -> int:
    """Measure what is not in the file yet; returns 1 if anything failed or differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="the figures; rows that it has are not measured again")
    parser.add_argument(
        "--only", default="", help="regular expression for names of rows, such as `TopK|Conv .*float16`"
    )
    parser.add_argument("--target", default="cpu", help="cpu or cpu-jit")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--again", action="store_true", help="measure rows again that the file has")
    parser.add_argument("--page", type=Path, default=None, help="write the page of the documentation from the file")
    args = parser.parse_args()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(args.json.read_text()) if args.json.is_file() else {}
    wanted = [c for row in ROWS for c in cases(row) if re.search(args.only, c.name)]
    for case in wanted:
        name = f"{args.target}|{case.name}"
        if name in found and not args.again:
            continue
        # A run that ends with its process must not be tried for ever.
        found[name] = {"error": "the process ended"}
        args.json.write_text(json.dumps(found, indent=0))
        found[name] = measured(case, args.target, args.threads)
        args.json.write_text(json.dumps(found, indent=0))
        print(line(name, found[name]), flush=True)
    chosen = {f"{args.target}|{c.name}" for c in wanted}
    print(summary({n: r for n, r in found.items() if n in chosen}))
    if args.page is not None:
        from operator_page import page

        args.page.write_text(page(found))
    return int(any("error" in found[n] for n in chosen if n in found))


def measured(case: Case, target: str, threads: list[int]) -> dict[str, Any]:
    """Times of both sides by the number of threads, or why there are none."""
    import onnxruntime

    import occ

    data, inputs = case.model()
    made: dict[str, Any] = {}
    for count in threads:
        if count > 1 and (case.size == "small" or case.symbolic or case.kind != case.row.types[0]):
            continue
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = count, 1, 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            theirs: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            expected = theirs.run(None, inputs)
        except Exception as e:
            return {"skipped": f"onnxruntime: {_first_line(e)}"}
        try:
            start = time.process_time()
            ours = occ.compile(data, target, threads=count)
            made.setdefault("build_s", time.process_time() - start)
            got = ours.run(inputs)
        except Exception as e:
            return {"error": _first_line(e)}
        if wrong := differs(
            got, dict(zip([o.name for o in theirs.get_outputs()], expected, strict=True)), case.row.tolerance
        ):
            return {"error": wrong}
        clock = time.thread_time if count == 1 else time.perf_counter
        runs = partial(ours.run, inputs), partial(theirs.run, None, inputs)
        made[str(count)] = asdict(timed(*runs, clock))
    return made


def differs(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], least: float = 0.0) -> str:
    """Errors in outputs; none if they agree within the tolerance of their type, or `least` if that is more. Codes of 8 bits may be off by one: implementations round differently."""
    from occ.compiler.compare import difference

    for name, e in expected.items():
        g = got[name]
        if g.shape != e.shape or g.dtype != e.dtype:
            return f"`{name}` is {g.dtype}{list(g.shape)}, not {e.dtype}{list(e.shape)}"
        if e.dtype.kind == "f":
            if not (gap := difference(g, e)) <= max(TOLERANCES[e.dtype], least):
                return f"`{name}` differs by {gap:.1e} of the largest value"
        elif (apart := np.abs(g.astype(np.int64) - e.astype(np.int64)).max(initial=0)) > (
            e.dtype.itemsize == 1 and e.dtype.kind != "b"
        ):
            return f"`{name}` differs by {apart}"
    return ""


@dataclass(frozen=True)
class Times:
    """Microseconds of a run, and how many times as fast occ is."""

    occ: float
    onnxruntime: float
    ratio: float


def timed(ours: Callable[[], object], theirs: Callable[[], object], clock: Clock) -> Times:
    """Both in turns: medians over the blocks of the least time in each."""
    counts = [_count(run) for run in (ours, theirs)]
    pairs = [[_block(run, n, clock) for run, n in zip((ours, theirs), counts, strict=True)] for _ in range(BLOCKS)]
    a, b = (median(p[k] for p in pairs) * 1e6 for k in (0, 1))
    return Times(a, b, median(y / max(x, 1e-9) for x, y in pairs))


def _count(run: Callable[[], object]) -> int:
    """How many runs a group has: enough for the clock."""
    run()
    start = time.perf_counter()
    run()
    return max(1, int(GROUP / max(time.perf_counter() - start, 1e-6)))


def _block(run: Callable[[], object], count: int, clock: Clock) -> float:
    """Seconds of a run, the least over the groups of a block."""
    run()
    least = float("inf")
    for _ in range(GROUPS):
        start = clock()
        for _ in range(count):
            run()
        least = min(least, (clock() - start) / count)
    return least


def line(name: str, result: Mapping[str, Any]) -> str:
    """One row for people."""
    if reason := result.get("error") or result.get("skipped"):
        return f"{name:64} {reason}"
    cells = [
        f"T={n} {t['occ']:10.1f} us {t['onnxruntime']:10.1f} us {t['ratio']:6.2f}x"
        for n, t in result.items()
        if n.isdigit()
    ]
    return f"{name:64} {'  '.join(cells)}"


def summary(found: Mapping[str, Any]) -> str:
    """The geometric mean of the speed over onnxruntime by size, and how many rows are slow."""
    made: list[str] = []
    for size in SIZES:
        ratios = [t["ratio"] for n, r in found.items() if n.split("|")[3] == size for k, t in r.items() if k.isdigit()]
        if ratios:
            mean = exp(sum(map(log, ratios)) / len(ratios))
            made.append(f"{size:6} {mean:5.2f}x over {len(ratios)} rows, {sum(r < 0.8 for r in ratios)} below 0.8")
    failed = [n for n, r in found.items() if "error" in r]
    return "\n".join([*made, *(f"failed: {n}: {found[n]['error']}" for n in failed)])


def _first_line(e: Exception) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0][:200]


if __name__ == "__main__":
    sys.exit(main())
