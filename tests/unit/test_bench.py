"""Profiles count what kernels do; comparisons refuse a speed-up where outputs differ."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from building import mlp, model_of
from click.testing import CliRunner

import occ
from occ.benchmark import Comparison, Runs, Timing, compare, measure
from occ.cli import cli
from occ.compiler.compare import difference
from occ.runtime.profile import profile, speed_over_f32

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 8] x) => (float[n, 4] y) <float[8, 4] w = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}> {
  h = MatMul(x, w)
  y = Relu(h)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_profile_counts_operations_and_bytes_of_each_kernel(model: Path, target: str) -> None:
    session = occ.compile(model, target)
    made = profile(session, {"x": np.ones((5, 8), np.float32)}, runs=2)
    assert made is not None
    operations = sum(e.gflops * e.seconds * 1e9 for e in made.events)
    assert operations == pytest.approx(2 * 5 * 8 * 4 + 5 * 4)  # a multiply-add for each term, a comparison each
    assert sum(e.gbytes * e.seconds * 1e9 for e in made.events) > 3.99 * (5 * 8 + 8 * 4 + 5 * 4)
    assert {e["ph"] for e in made.as_trace()["traceEvents"]} == {"X"}
    assert json.loads(json.dumps(made.as_data()))["threads"] == session.threads
    assert session.run({"x": np.ones((5, 8), np.float32)})["y"][0].tolist() == [8, 16, 24, 32]


def test_run_profile_prints_a_table_and_writes_a_trace(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = CliRunner().invoke(cli, ["run", str(model), "-t", "cpu-jit", "--profile", "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert "GFLOP/s" in done.output
    assert json.loads(trace.read_text())["traceEvents"]


def test_bench_compares_with_onnxruntime(model: Path) -> None:
    done = CliRunner().invoke(
        cli,
        ["bench", str(model), "-t", "cpu-jit", "--against", "onnxruntime", "--rounds", "1", "--dim", "n=3", "--json"],
    )
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["differences"]["onnxruntime"] < 1e-5
    assert set(made["times"]) == {"occ", "onnxruntime"}


def test_no_speed_up_where_the_outputs_differ(model: Path, tmp_path: Path) -> None:
    other = onnx.load(model)
    other.graph.initializer[0].float_data[:] = [7.0] * 32
    session = occ.compile(model, "cpu-jit")
    made = compare(session, other.SerializeToString(), {"x": np.ones((2, 8), np.float32)}, ["onnxruntime"], rounds=1)
    assert "outputs differ" in made.reasons["onnxruntime"]
    assert "as fast" not in "\n".join(made.lines())


def test_difference_is_a_share_of_the_largest_value() -> None:
    a = np.array([1.0, np.nan, 10.0], np.float32)
    assert difference(a, a) == 0
    assert difference(np.array([2.0, np.nan, 10.0], np.float32), a) == pytest.approx(0.1)
    assert difference(np.array([1.0, 0.0, 10.0], np.float32), a) == np.inf
    assert difference(a.astype(np.float64), a) == np.inf


@pytest.mark.parametrize(
    ("target", "machine", "dtypes", "times"),
    [
        ("cpu", "x86-64-linux-avx512_zen4", ["f32", "f32"], 1),
        ("cpu", "x86-64-linux-avx512_zen4", ["u8", "i8", "f32"], 4),
        ("cpu", "x86-64-linux-avx512_sapphirerapids-amx_int8-no_runtime", ["u8", "i8"], 32),
        ("cpu", "x86-64-linux-avx2", ["u8", "i8"], 2),
        ("cpu", "arm-64-linux", ["u8", "i8"], 4 / 3),
        ("cpu", "x86-64-linux-avx512_zen4", ["bf16", "bf16"], 2),
        ("cpu", "x86-64-linux-avx2", ["bf16", "bf16"], 1),
        ("cpu-jit", "x86-64-linux-avx512_zen4", ["u8", "i8"], 1),
        ("cpu", "x86-64-linux-avx2", ["u8", "f32"], 1),
        ("cpu", "x86-64-linux-avx2", ["f64"], 0.5),
    ],
)
def test_the_peak_is_that_of_the_instructions_that_a_kernel_uses(target, machine, dtypes, times) -> None:
    m = replace(occ.build(mlp(), "interp").manifest, target=target, machine=machine)
    assert speed_over_f32(dtypes, m) == pytest.approx(times)


def test_shares_of_peak_are_over_the_peak_of_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    session = occ.compile(model_of("g (double[n] x) => (double[n] y) { y = Exp(x) }"), "cpu-jit")
    monkeypatch.setattr(session.engine, "peak", lambda: 8e9)
    made = profile(session, {"x": np.ones(64)}, runs=1)
    assert made is not None
    assert made.events[0].share == pytest.approx(made.events[0].gflops / 4)


def test_runs_tell_their_percentiles_and_throughput() -> None:
    runs = Runs.of([0.001 * k for k in range(1, 102)])
    assert (runs.count, runs.least, runs.median, runs.p90, runs.p99) == pytest.approx((101, 1, 51, 91, 100))
    assert runs.per_second == pytest.approx(1 / 0.051)
    assert runs.line() == "min 1.000, median 51.000, p90 91.000, p99 100.000 ms, 19.6 runs/s (101 runs)"
    assert Runs.of([0.002]).p99 == pytest.approx(2)


@pytest.mark.parametrize(("ours", "theirs"), [(0.16, 0.01), (0.01, 0.16)])
def test_no_speed_up_of_times_that_vary(ours: float, theirs: float) -> None:
    made = Comparison(
        1, {"occ": Timing(1.0, ours, 1.0), "onnxruntime": Timing(2.0, theirs, 2.0, 2.0)}, {"onnxruntime": 0.0}
    )
    assert "spread above 15%, not trustworthy" in made.lines()[1]
    assert "as fast" not in "".join(made.lines())
    steady = Comparison(
        1, {"occ": Timing(1.0, 0.1, 1.0), "onnxruntime": Timing(2.0, 0.1, 2.0, 2.0)}, {"onnxruntime": 0.0}
    )
    assert "occ is 2.00x as fast" in steady.lines()[1]


def test_bench_says_what_was_run_and_how_long_single_runs_take(model: Path) -> None:
    done = CliRunner().invoke(cli, ["bench", str(model), "-t", "cpu-jit", "--rounds", "2", "--dim", "n=3"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "x: float32[3,8]"
    assert lines[2].split()[0] == "min"
    assert "runs/s" in lines[2]


class Clock:
    """The time of a machine that is 25, 1 and 5 times as slow as at first, a round each; each block begins with a pause."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, 0

    @property
    def round(self) -> int:
        return max(self.pauses - 1, 0) // 2

    def run(self, *seconds: float) -> None:
        """Something that takes so long in the rounds."""
        self.now += seconds[self.round] * (25, 1, 5)[self.round]

    def sleep(self, _: float) -> None:
        self.pauses += 1

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now / 2


def test_ratio_is_of_neighbouring_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("occ.benchmark.time", clock)
    a, b = lambda: clock.run(0.002, 0.002, 0.002), lambda: clock.run(0.004, 0.006, 0.020)
    made = measure({"a": a, "b": b}, rounds=3)
    assert made["a"].ratio == made["a"].cpu_ratio == 1
    assert made["b"].ratio == pytest.approx(
        3
    )  # the median of 2, 3 and 10, while the medians of times are 10 and 100 ms
    assert made["b"].cpu_ratio == pytest.approx(3)
    assert (made["a"].ms, made["b"].ms) == pytest.approx((10, 100))
    assert made["b"].cpu_ms == pytest.approx(50)


@pytest.mark.toolchain
def test_kernels_of_a_scan_do_not_count_the_way_from_python_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[40, 8] x, float[8] s) => (float[8] f, float[40, 8] y) {
      f, y = Scan <num_scan_inputs = 1, body = b (float[8] c, float[8] e) => (float[8] n, float[8] o) {
        t = Tanh(c)
        n = Add(t, e)
        o = Identity(n)
      }> (s, x)
    }"""
    session = occ.compile(onnx.parser.parse_model(text), "cpu")
    inputs = {"x": np.zeros((40, 8), np.float32), "s": np.zeros(8, np.float32)}
    assert 0 < session.engine.call_cost() < 1
    monkeypatch.setattr(type(session.engine), "call_cost", lambda self: 0.0)
    with_it = profile(session, inputs, runs=3)
    monkeypatch.setattr(type(session.engine), "call_cost", lambda self: 60.0)
    without = profile(session, inputs, runs=3)
    assert with_it is not None
    assert without is not None
    assert len(without.events) == len(with_it.events) == 40
    assert all(e.seconds > 1e-9 for e in with_it.events)
    assert all(e.seconds == 1e-9 for e in without.events)
