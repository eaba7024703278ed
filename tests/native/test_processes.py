"""Sessions in the processes of servers and of data loaders, interrupted builds and runs, and threads
that end.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import model_of

import occ

TARGETS = ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)]
RNG = np.random.default_rng(0)
LONG = 300  # seconds: nothing here takes ten on a machine that has nothing else to do


def conv(width: int) -> onnx.ModelProto:
    weight = RNG.standard_normal((8, 8, 3, 3), np.float32)
    text = f"g (float[1, 8, 16, {width}] x) => (float[1, 8, 16, {width}] y) {{ y = Conv <pads = [1, 1, 1, 1]> (x, w) }}"
    return model_of(text, {"w": weight})


# servers and data loaders


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_workers_of_gunicorn_run_the_session_of_the_preloaded_application(target: str, built: Any, tmp_path: Path):
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    np.save(tmp_path / "x.npy", RNG.standard_normal((1, 8, 16, 64), np.float32))
    given = {"OCC_TEST_MODEL": str(built(conv(64), target)), "OCC_TEST_INPUT": str(tmp_path / "x.npy")}
    port = 0
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "2", "-b", "127.0.0.1:0", "processes_app:app"]
    with subprocess.Popen(
        command, env=os.environ | given, cwd=Path(__file__).parent, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:  # "Listening at: http://127.0.0.1:PORT (PID)"
                if "Listening at" in line:
                    port = int(line.split("http://127.0.0.1:")[1].split()[0])
                    break
            answers = [_answer(port).split() for _ in range(12)]
        finally:
            server.terminate()
            server.communicate(timeout=LONG)
    assert {right for _, right in answers} == {"True"}
    assert str(server.pid) not in {process for process, _ in answers}


def _answer(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=LONG)
    connection.request("GET", "/")
    return connection.getresponse().read().decode()


LOADER = """
import sys
import numpy as np
import torch
import occ


class Data(torch.utils.data.Dataset):
    def __init__(self, path, session=None):
        self.path, self.session = path, session

    def __len__(self):
        return 8

    def __getitem__(self, k):
        if self.session is None:
            self.session = occ.load(self.path, threads=2)
        return self.session.run({"x": np.full((1, 8, 16, 64), k, np.float32)})["y"][0, 0, 0]


if __name__ == "__main__":
    path = sys.argv[1]
    ours = Data(path, occ.load(path, threads=2))
    expected = np.stack([ours[k] for k in range(8)])
    for how, data in (("fork", ours), ("spawn", Data(path)), ("forkserver", Data(path))):
        loader = torch.utils.data.DataLoader(data, 2, num_workers=2, multiprocessing_context=how)
        print(how, np.array_equal(torch.cat(list(loader)).numpy(), expected))
"""


@pytest.mark.parametrize("target", TARGETS[1:])
def test_workers_of_data_loaders_of_torch(target: str, built: Any, tmp_path: Path):
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "load.py").write_text(LOADER)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "load.py"), str(built(conv(64), target))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONG, check=False)
    assert ran.stdout == "fork True\nspawn True\nforkserver True\n", ran.stderr


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_a_session_says_how_another_process_gets_it(target: str):
    session = occ.compile(conv(64), target)
    with pytest.raises(TypeError, match=r"load the artifact there: .*occ\.load"):
        pickle.dumps(session)


# interrupts


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`interrupt(seconds)` raises KeyboardInterrupt in this thread, as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    # One that falls into a finalizer or a callback of the collector is dropped by Python, which is not a fault of a build.
    # The hook of pytest would keep its frames, and with them sessions.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS[:2])
def test_an_interrupted_build_leaves_nothing_in_the_way_of_the_next(
    target: str, interrupt: Callable[[float], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    occ.compile(conv(20), target)  # modules are imported, tools are made
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
    start = time.perf_counter()
    occ.compile(conv(21), target)
    took = time.perf_counter() - start
    before, interrupted = threading.active_count(), 0
    for k in range(4):
        model = conv(22 + k)
        try:
            interrupt(took * (k + 0.5) / 4)
            occ.compile(model, target, threads=2)
            interrupt(0)
        except KeyboardInterrupt:
            interrupted += 1
        x = RNG.standard_normal((1, 8, 16, 22 + k), np.float32)
        found = occ.compile(model, target, threads=2).run({"x": x})["y"]
        np.testing.assert_allclose(found, occ.compile(model, "interp").run({"x": x})["y"], rtol=1e-4, atol=1e-4)
    assert interrupted
    end = time.monotonic() + 60
    while threading.active_count() > before + 2 and time.monotonic() < end:
        gc.collect()  # a session is part of a cycle, and its thread ends with it
        time.sleep(0.1)
    assert threading.active_count() <= before + 2


@pytest.mark.parametrize("target", TARGETS)
def test_an_interrupted_run_leaves_a_session_that_runs(target: str, interrupt: Callable[[float], None]):
    session = occ.compile(conv(400), target, threads=2)
    feed = {"x": RNG.standard_normal((1, 8, 16, 400), np.float32)}
    expected = session.run(feed)["y"]
    for k in range(10):
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come as soon as it is asked for, and runs go on until then
            while True:
                interrupt(1e-4 * (k + 1))
                end = time.monotonic() + 0.2
                while time.monotonic() < end:
                    session.run(feed)
        np.testing.assert_array_equal(session.run(feed)["y"], expected)


# sessions and threads that end


@pytest.mark.parametrize("target", TARGETS)
def test_sessions_that_are_closed_and_dropped_while_they_run(target: str):
    """Each run ends, and is right: what it uses stays until then."""
    model = conv(300)
    feed = {"x": RNG.standard_normal((1, 8, 16, 300), np.float32)}
    expected = occ.compile(model, target, threads=2).run(feed)["y"]
    wrong: list[str] = []
    for _ in range(3):
        held = [occ.compile(model, target, threads=2)]

        def work(session: occ.Session) -> None:
            for _ in range(20):
                if not np.array_equal(session.run(feed)["y"], expected):
                    wrong.append("another result")

        threads = [threading.Thread(target=work, args=(held[0],)) for _ in range(2)]
        for t in threads:
            t.start()
        held[0].close()
        held.clear()
        for t in threads:
            t.join()
    assert not wrong


@pytest.mark.parametrize("target", TARGETS[1:])
def test_threads_that_run_once_and_end_leave_no_memory(target: str):
    session = occ.compile(conv(300), target, threads=2)
    feed = {"x": RNG.standard_normal((1, 8, 16, 300), np.float32)}

    def runs(count: int) -> int:
        for _ in range(count):
            thread = threading.Thread(target=session.run, args=(feed,))
            thread.start()
            thread.join()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = runs(150)  # more threads than there are places for scratch memory
    assert runs(300) < before + (8 << 20)
