"""`occ serve` with a real MLServer, over REST and gRPC: answers, batches, and what goes wrong while it runs."""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of
from serving import Server, started, stop

import occ

if find_spec("mlserver") is None:  # importing it would register the protocol's messages twice in this process
    pytest.skip("MLServer is not installed", allow_module_level=True)
triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
triton_http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serving")
    onnx.save(mlp(), folder / "m.onnx")
    occ.build(mlp(seed=5), "cpu-jit", folder / "other.occ")
    onnx.save(
        model_of("g (float[n] x) => (float[n] y, int64[n] z) { y = Exp(x)  z = Cast <to = 7> (x) }"),
        folder / "two.onnx",
    )
    made = started(folder, "m.onnx", "second=other.occ", "two.onnx", "-t", "cpu-jit", "--max-request", "1")
    yield made
    stop(made)


def test_rest_and_grpc_answer_for_every_model(server: Server) -> None:
    x = RNG.standard_normal((3, 8), dtype=np.float32)
    for name, seed in (("m", 0), ("second", 5)):
        want = occ.compile(mlp(seed=seed), "interp")(x)[0]
        np.testing.assert_allclose(server.infer(x, name), want, rtol=1e-4, atol=1e-5)
        given = {"name": "x", "shape": [3, 8], "datatype": "FP32", "data": x.tolist()}
        code, answer = server.post(f"/v2/models/{name}/infer", {"id": "7", "inputs": [given]})
        assert (code, answer["id"], answer["outputs"][0]["shape"]) == (200, "7", list(want.shape))
        np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], want.shape), want, rtol=1e-4, atol=1e-5)


def test_rest_with_tritonclient_and_one_of_the_outputs(server: Server) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        given = triton_http.InferInput("x", [4], "FP32")
        given.set_data_from_numpy(np.float32([0, 1, 2, 3]), binary_data=False)
        answer = client.infer("two", [given], outputs=[triton_http.InferRequestedOutput("z", binary_data=False)])
        np.testing.assert_array_equal(answer.as_numpy("z"), [0, 1, 2, 3])
        assert [o["name"] for o in answer.get_response()["outputs"]] == ["z"]


def test_metadata_says_what_the_model_takes(server: Server) -> None:
    made = server.grpc.get_model_metadata("two", as_json=True)
    assert made["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1"]}]
    assert [(o["name"], o["datatype"]) for o in made["outputs"]] == [("y", "FP32"), ("z", "INT64")]


GOOD = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0.5] * 8}


@pytest.mark.parametrize(
    ("changed", "code", "told"),
    [
        ({"name": "z"}, 400, "the model takes x: f32[n,8]"),
        ({"shape": [1, 9]}, 400, "[1, 9]"),
        ({"shape": [2, 8]}, 400, "8 elements"),
        ({"shape": [-1, 8]}, 400, "[-1, 8]"),
        ({"datatype": "INT64"}, 400, "is FP32, not INT64"),
        ({"data": ["a"] * 8}, 400, "not of the type FP32"),
        ({"data": [[1, 2], [3]]}, 400, "not an array"),
        ({"data": [1e300] * 8}, 400, "out of the range of FP32"),
        ({"shape": [1 << 40, 8]}, 413, "are allowed"),
        ({"shape": [1 << 17, 8]}, 413, "1048576 are allowed"),
    ],
)
def test_bad_requests_are_refused_and_spoil_nothing(
    server: Server, changed: dict[str, Any], code: int, told: str
) -> None:
    got, answer = server.post("/v2/models/m/infer", {"inputs": [GOOD | changed]})
    assert got == code, answer
    assert told in answer["error"]
    assert server.post("/v2/models/m/infer", {"inputs": [GOOD]})[0] == 200


def test_a_body_that_is_no_request_is_refused(server: Server) -> None:
    for body in (b"{", b"[]", b'{"inputs": 3}', b'{"inputs": []}', b"\xff"):
        assert 400 <= server.post("/v2/models/m/infer", body)[0] < 500
    assert server.post("/v2/models/none/infer", {"inputs": [GOOD]})[0] == 404
    assert server.post("/v2/models/m/infer", {"inputs": [GOOD]})[0] == 200


def hammered(
    server: Server, going: Callable[[int], bool], refused: type[Exception] | tuple[()] = ()
) -> tuple[list[Any], int]:
    """Eight clients, each with rows of its own, as long as `going` of the number of answers; returns those that were wrong, and refusals."""
    want = {k: occ.compile(mlp(), "interp")(np.full((1 + k % 3, 8), k / 8, np.float32))[0] for k in range(8)}
    counts, wrong, refusals = [0] * 8, [], [0] * 8

    def work(k: int) -> None:
        x = np.full((1 + k % 3, 8), k / 8, np.float32)
        while going(sum(counts)):
            try:
                got = server.infer(x)
            except refused:
                refusals[k] += 1
                continue
            except Exception as e:
                wrong.append(e)
                return
            counts[k] += 1
            if got.shape != want[k].shape or not np.allclose(got, want[k], rtol=1e-4, atol=1e-5):
                wrong.append((k, got))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return wrong, sum(refusals)


def test_under_load_no_answer_is_lost_or_mixed_and_runs_are_shared(server: Server) -> None:
    wrong, _ = hammered(server, lambda answered: answered < 500)
    assert not wrong
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port + 2}/metrics") as page:
        lines = page.read().decode().splitlines()
    count, rows = (
        float(next(v for v in lines if v.startswith(f'occ_batch_rows_{w}{{model="m"')).split()[-1])
        for w in ("count", "sum")
    )
    assert rows / count > 2.2, "requests have 2 rows on average"


def test_a_model_is_replaced_while_it_is_served(server: Server) -> None:
    onnx.save(mlp(), server.folder / "new.onnx")
    codes: list[int] = []

    def replace() -> None:
        for _ in range(4):
            os.replace(server.folder / "new.onnx", server.folder / "m.onnx")
            codes.append(server.post("/v2/repository/models/m/load", {})[0])
            onnx.save(mlp(), server.folder / "new.onnx")

    thread = threading.Thread(target=replace)
    thread.start()
    wrong, _ = hammered(server, lambda answered: answered < 20 or thread.is_alive())
    thread.join()
    assert (wrong, codes) == ([], [200] * 4)
    onnx.save(mlp(seed=3), server.folder / "m.onnx")
    server.post("/v2/repository/models/m/load", {})
    x = np.ones((2, 8), np.float32)
    np.testing.assert_allclose(server.infer(x), occ.compile(mlp(seed=3), "interp")(x)[0], rtol=1e-4, atol=1e-5)
    (server.folder / "m.onnx").write_bytes(b"broken")
    assert server.post("/v2/repository/models/m/load", {})[0] >= 400
    np.testing.assert_allclose(server.infer(x), occ.compile(mlp(seed=3), "interp")(x)[0], rtol=1e-4, atol=1e-5)
    onnx.save(mlp(), server.folder / "m.onnx")
    assert server.post("/v2/repository/models/m/load", {})[0] == 200


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in found if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]


def test_a_killed_worker_is_replaced_and_loses_only_what_it_was_doing(tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    server = started(tmp_path, "m.onnx", "-t", "cpu-jit", "--workers", "2", "--threads", "1")
    try:
        before = children(server.process.pid)
        assert len(before) >= 2
        once = threading.Lock()

        def going(answered: int) -> bool:
            if answered >= 50 and once.acquire(blocking=False):
                os.kill(before[-1], signal.SIGKILL)
            return answered < 500

        wrong, refused = hammered(server, going, triton.InferenceServerException)
        assert not wrong
        assert refused <= 8, "what the worker was doing, one request of each client"
        assert server.infer(np.ones((1, 8), np.float32)).shape[0] == 1
    finally:
        stop(server)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["none.onnx"], "OCC0101"),
        (["m.onnx", "m.onnx"], "two models are called `m`"),
        (["a b=m.onnx"], "not a name for a URL"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_listens(
    args: list[str], told: str, tmp_path: Path, monkeypatch: Any, occ_cli: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), tmp_path / "m.onnx")
    ran = occ_cli("serve", *args)
    assert ran.code in (1, 2)
    assert told in ran.err
