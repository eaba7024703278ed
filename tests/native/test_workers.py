"""A scheduler of dask.distributed with two workers: kernels that they compile, schedules that they measure, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference

import occ
from occ.compiler.diagnostics import CompileError, error
from occ.compiler.tuning.isolated_call import isolated

pytest.importorskip("distributed", reason="distributed is not installed")
pytestmark = [pytest.mark.toolchain, pytest.mark.slow]


@dataclass
class Cluster:
    """What runs: the address of the scheduler, and the workers."""

    address: str
    workers: list[subprocess.Popen[bytes]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    known = tmp_path / "scheduler.json"
    usual = ["--scheduler-file", str(known), "--no-dashboard", "--host", "127.0.0.1"]
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    running = [subprocess.Popen([*dask, *usual, "--port", "0"], stderr=subprocess.DEVNULL)]
    try:
        from distributed import Client

        for k in range(2):
            env = {**os.environ, "OCC_CACHE_DIR": str(tmp_path / f"cache{k}")}
            worker = [sys.executable, "-m", "distributed.cli.dask_worker", *usual, "--no-nanny", "--nthreads", "1"]
            running.append(subprocess.Popen(worker, env=env, stderr=subprocess.DEVNULL, start_new_session=True))
        end = time.monotonic() + 300
        while not known.is_file() and time.monotonic() < end:
            time.sleep(0.1)
        with Client(scheduler_file=str(known), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=300)
            address = client.scheduler.address
        yield Cluster(address, running[1:])
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Six small models that share no kernels."""
    made: list[Path] = []
    for k in range(6):
        text = f"g (float[n, {20 + k}] x) => (float[n, {20 + k}] y) {{ s = Sin(x) t = Exp(s) u = Add(t, x) y = Mul(u, s) }}"
        made.append(tmp_path / f"m{k}.onnx")
        onnx.save(model_of(text), made[-1])
    return made


def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OCC_CACHE_DIR", str(folder))
    return folder


def test_kernels_of_many_models_come_from_workers(cluster, models, tmp_path, occ_cli, monkeypatch):
    own = _fresh(tmp_path, monkeypatch)
    ran = occ_cli("warm", "--workers", cluster.address, "--json", *models)
    assert ran.code == 0, ran.err
    made = {p.name for p in (own / "kernel").rglob("*.o")}
    there = [{p.name for p in (tmp_path / f"cache{k}" / "kernel").rglob("*.o")} for k in range(2)]
    assert len(made) >= 6
    assert made == there[0] | there[1]
    x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(2, 20)
    with occ.compile(models[0], "cpu") as session:
        got = session.run({"x": x})["y"]
    np.testing.assert_allclose(got, reference(onnx.load(models[0]), {"x": x})[0], rtol=1e-5)


def test_a_worker_that_is_killed_loses_nothing(cluster, models, tmp_path, occ_cli, monkeypatch):
    own = _fresh(tmp_path, monkeypatch)
    from occ.compiler.tuning import workers

    whole, calls = workers.Workers.call, list[object]()

    def call(self, among, function, *args):
        calls.append(function)
        if len(calls) == 1:
            os.killpg(cluster.workers[0].pid, signal.SIGKILL)
        return whole(self, among, function, *args)

    monkeypatch.setattr(workers.Workers, "call", call)
    ran = occ_cli("warm", "--workers", cluster.address, "--json", *models)
    assert ran.code == 0, ran.err
    assert len(calls) >= 2
    assert len(list((own / "kernel").rglob("*.o"))) >= 6


def test_all_workers_gone_leaves_the_work_here(cluster, models, tmp_path, occ_cli, monkeypatch):
    own = _fresh(tmp_path, monkeypatch)
    from occ.compiler.tuning import workers

    whole = workers.Workers.compile_batch

    def compile_batch(self, *args):
        for worker in cluster.workers:
            worker.kill()
        return whole(self, *args)

    monkeypatch.setattr(workers.Workers, "compile_batch", compile_batch)
    ran = occ_cli("warm", "--workers", cluster.address, *models)
    assert ran.code == 0, ran.err
    assert len(list((own / "kernel").rglob("*.o"))) >= 6


def test_schedules_are_measured_by_workers_and_remembered(cluster, tmp_path, occ_cli, monkeypatch):
    own = _fresh(tmp_path, monkeypatch)
    model = tmp_path / "mlp.onnx"
    onnx.save(mlp(), model)
    out = tmp_path / "m.occ"
    ran = occ_cli("build", model, "--tune", 300, "--workers", cluster.address, "-o", out)
    assert ran.code == 0, ran.err
    assert "measured by 2 workers of 1 kinds of machines" in ran.out + ran.err
    known = {p.name for p in (own / "tuned").rglob("*.json")}
    assert known
    again = occ_cli("build", model, "--tune", 0, "-o", out)
    assert f"({len(known)} remembered, 0 not looked at)" in again.out + again.err


def test_what_cannot_work_is_one_error(tmp_path, models, occ_cli, monkeypatch):
    refused = occ_cli("warm", "--workers", "tcp://127.0.0.1:9", models[0])
    assert (refused.code, "OCC0408" in refused.err, "dask scheduler" in refused.err) == (4, True, True)
    assert occ_cli("warm", "--workers", "no address", models[0]).err.count("OCC0408") == 1
    alone = occ_cli("build", models[0], "--workers", "tcp://127.0.0.1:9")
    assert alone.code == 2
    assert "--tune" in alone.err
    monkeypatch.setitem(sys.modules, "distributed", None)
    missing = occ_cli("warm", "--workers", "tcp://127.0.0.1:9", models[0])
    assert "pip install 'occ-compiler[workers]'" in missing.err


def test_errors_of_the_compiler_pass_between_processes():
    def fails() -> None:
        raise error("OCC0403", "so it is", where="node", notes=["a", "b"], help="do that")

    with pytest.raises(CompileError) as caught:
        isolated(fails)
    (found,) = caught.value.diagnostics
    assert (found.code, found.where, found.notes, found.helps) == ("OCC0403", "node", ("a", "b"), ("do that",))
