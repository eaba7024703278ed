"""`occ serve` as clients that nobody here wrote meet it: curl as docs/serving.md has it, tritonclient, and a supervisor."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of
from ports import free_port
from serving import Server, started, stop

import occ

if find_spec("mlserver") is None:  # importing it would register the protocol's messages twice in this process
    pytest.skip("MLServer is not installed (the extra `mlserver`)", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serving.md").read_text()
KINDS = ["float", "double", "float16", "int8", "uint8", "int32", "int64", "bool"]
THREE = np.load(ROOT / "examples/three.npy")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("clients")
    shutil.copy(ROOT / "examples/digits.onnx", folder)
    shutil.copytree(ROOT / "examples", folder / "examples")
    onnx.save(mlp(), folder / "m.onnx")
    for kind in KINDS:
        onnx.save(model_of(f"g ({kind}[n,3] x) => ({kind}[n,3] y) {{ y = Identity (x) }}"), folder / f"{kind}.onnx")
    made = started(
        folder, "digits.onnx", "m.onnx", *(f"{k}.onnx" for k in KINDS), "-t", "cpu-jit", "--max-request", "1"
    )
    yield made
    stop(made)


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as made:
        yield made


def given(x: np.ndarray, name: str = "x", **how: Any) -> Any:
    import tritonclient.http as triton
    from tritonclient.utils import np_to_triton_dtype

    made = triton.InferInput(name, list(x.shape), np_to_triton_dtype(x.dtype))
    made.set_data_from_numpy(x, **how)
    return made


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_as_the_page_has_it(server: Server) -> None:
    lines = re.findall(r"^curl .*/(?:digits|infer -d .*)$", PAGE, re.M)
    assert len(lines) == 2
    ran = [
        subprocess.run(["sh", "-c", c.replace(":8000", f":{server.port}")], capture_output=True, check=True)
        for c in lines
    ]
    metadata, answer = (json.loads(r.stdout) for r in ran)
    assert metadata["inputs"] == [{"name": "picture", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
    want = occ.compile(ROOT / "examples/digits.onnx", "interp")(x)[0]
    np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], (1, 10)), want, rtol=1e-4)


def test_tritonclient_as_the_page_has_it(server: Server, client: Any) -> None:
    (code,) = re.findall(r"^```python\n# tritonclient\n(.*?)^```$", PAGE, re.M | re.S)
    code = code.replace(":8000", f":{server.port}")
    ran = subprocess.run([sys.executable, "-c", code], cwd=server.folder, capture_output=True, text=True, check=False)
    assert ran.stdout == "3\n", ran.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [2, 0])
def test_tensors_of_every_kind_go_both_ways_as_they_are(client: Any, kind: str, rows: int) -> None:
    dtype = {"float": np.float32, "double": np.float64}.get(kind, kind)
    x = (np.random.default_rng(0).standard_normal((rows, 3)) * 9).astype(dtype)
    if kind == "int64":
        x += 2**62 + 1  # more than the mantissa of a double has
    got = client.infer(kind, [given(x)])
    np.testing.assert_array_equal(got.as_numpy("y"), x)
    assert got.as_numpy("y").dtype == x.dtype
    assert "data" not in got.get_output("y")


def test_inputs_and_outputs_are_binary_or_json_as_each_says(client: Any) -> None:
    import tritonclient.http as triton

    x = np.float32([[1, 2, 3]])
    for binary in (True, False):
        for wanted in (True, False):
            outputs = [triton.InferRequestedOutput("y", binary_data=wanted)]
            got = client.infer("float", [given(x, binary_data=binary)], outputs=outputs, request_id="7")
            np.testing.assert_array_equal(got.as_numpy("y"), x)
            assert ("data" in got.get_output("y"), got.get_response()["id"]) == (not wanted, "7")


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_bodies_may_be_compressed(client: Any, how: str) -> None:
    x = np.ones((40, 3), np.float32)
    got = client.infer("float", [given(x)], request_compression_algorithm=how, response_compression_algorithm=how)
    np.testing.assert_array_equal(got.as_numpy("y"), x)


def test_many_clients_share_runs_of_binary_tensors(server: Server) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    session = occ.compile(mlp(), "interp")
    xs = [np.full((1 + k % 3, 8), k / 8, np.float32) for k in range(24)]
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8) as many:
        for x, asked in [(x, many.async_infer("m", [given(x)])) for x in xs]:
            np.testing.assert_allclose(asked.get_result().as_numpy("y"), session(x)[0], rtol=1e-4, atol=1e-5)


def test_the_other_calls_of_tritonclient(server: Server, client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert {m["name"] for m in client.get_model_repository_index()} == {"digits", "m", *KINDS}
    before = client.get_inference_statistics("digits")["model_stats"][0]
    for _ in range(3):
        client.infer("digits", [given(THREE.repeat(2, 0), "picture")])
    with pytest.raises(Exception, match="the model takes"):
        client.infer("digits", [given(THREE, "x")])
    after = client.get_inference_statistics("digits")["model_stats"][0]
    success = after["inference_stats"]["success"]
    assert success["count"] - before["inference_stats"]["success"]["count"] == 3
    assert success["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["inference_stats"]["fail"]["count"] - before["inference_stats"]["fail"]["count"] == 1
    assert after["inference_count"] - before["inference_count"] == 6
    assert {m["name"] for m in client.get_inference_statistics()["model_stats"]} == {"digits", "m", *KINDS}
    config = client.get_model_config("digits")
    assert config["input"] == [{"name": "picture", "data_type": "TYPE_FP32", "dims": [-1, 1, 8, 8]}]
    for ask in (client.get_model_config, client.get_inference_statistics):
        with pytest.raises(Exception, match="404"):
            ask("none")
    client.load_model("digits")
    assert client.is_model_ready("digits")


def answered(server: Server, body: bytes, **headers: str) -> tuple[int, str]:
    asked = urllib.request.Request(f"http://127.0.0.1:{server.port}/v2/models/float/infer", body, headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


BINARY = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}


@pytest.mark.parametrize(
    ("changed", "data", "told"),
    [
        ({}, b"", "does not fit the body"),
        ({}, b"1" * 11, "does not fit the body"),
        ({}, b"1" * 13, "do not belong to an input"),
        ({"shape": [1, 4]}, b"1" * 12, "12 bytes"),
        ({"shape": [-1, -3]}, b"1" * 12, "12 bytes"),
        ({"shape": "x"}, b"1" * 12, "shape"),
        ({"data": [1, 2, 3]}, b"1" * 12, "does not fit the body"),
        ({"datatype": "BYTES"}, b"1" * 12, "strings"),
        ({"datatype": "FP33"}, b"1" * 12, "datatype"),
        ({"parameters": {"binary_data_size": -1}}, b"1" * 12, "does not fit the body"),
        ({"parameters": {"binary_data_size": "12"}}, b"1" * 12, "does not fit the body"),
        ({"parameters": [1]}, b"1" * 12, "not an inference request"),
    ],
)
def test_binary_requests_that_do_not_fit_are_refused(server: Server, changed: Any, data: bytes, told: str) -> None:
    head = json.dumps({"inputs": [BINARY | changed]}).encode()
    code, text = answered(server, head + data, **{"Inference-Header-Content-Length": str(len(head))})
    assert code == 400, text
    assert told in json.loads(text)["error"]
    good = json.dumps({"inputs": [BINARY]}).encode()
    assert answered(server, good + b"1" * 12, **{"Inference-Header-Content-Length": str(len(good))})[0] == 200


def test_headers_and_bodies_that_lie_are_refused(server: Server) -> None:
    for size in ("0", "99999", "-1", "x"):
        assert answered(server, b"{}", **{"Inference-Header-Content-Length": size})[0] == 400
    assert answered(server, b"no gzip", **{"Content-Encoding": "gzip"})[0] == 400
    assert answered(server, b"{}", **{"Content-Encoding": "br"})[0] == 400
    assert answered(server, gzip.compress(bytes(64 << 20)), **{"Content-Encoding": "gzip"})[0] == 413
    assert answered(server, b"[" * 100_000)[0] == 400


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("share", [False, True])
def test_a_port_that_is_taken_ends_it_with_one_line(which: int, share: bool, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    port = free_port()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, share)  # as gRPC does
        other.bind(("127.0.0.1", port + which))
        other.listen()
        command = [sys.executable, "-m", "occ.cli", "serve", "m.onnx", "-t", "cpu-jit", "--port", str(port)]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    first, *rest = ran.stderr.splitlines()
    assert f"port {port + which} of 127.0.0.1 is taken" in first
    assert len(rest) <= 1
    assert "--port" in rest[0]
