"""The code of docs/serving.md: for LitServe on a real server, for Triton on a stand-in for its utilities."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ports import free_port

import occ

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serving.md").read_text()
THREE = np.load(ROOT / "examples/three.npy")


def block(mark: str) -> str:
    return next(b for b in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if b.startswith(f"# {mark}\n"))


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    occ.build(ROOT / "examples/digits.onnx", "cpu-jit", tmp_path / "1" / "model.occ")
    return tmp_path


def triton_utilities() -> types.ModuleType:
    """What a model calls of `triton_python_backend_utils` (triton-inference-server/python_backend, README)."""

    class Tensor:
        def __init__(self, name: str, value: np.ndarray) -> None:
            self.name, self._value = name, value

        def as_numpy(self) -> np.ndarray:
            return self._value

    class InferenceResponse:
        def __init__(self, output_tensors: Any = (), error: Any = None) -> None:
            self.output_tensors, self.error = output_tensors, error

    made: Any = types.ModuleType("triton_python_backend_utils")
    made.Tensor, made.InferenceResponse, made.TritonError = Tensor, InferenceResponse, RuntimeError
    made.get_input_tensor_by_name = lambda request, name: next(t for t in request if t.name == name)
    return made


def test_the_model_for_triton_answers_each_request_of_a_batch(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pb = triton_utilities()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb)
    scope: dict[str, Any] = {}
    exec(block("model.py"), scope)
    model = scope["TritonPythonModel"]()
    model.initialize({"model_repository": str(artifact), "model_version": "1"})
    requests = [[pb.Tensor("picture", np.repeat(x, n, 0))] for x, n in ((THREE, 1), (1 - THREE, 2))]
    got = [r.output_tensors[0].as_numpy() for r in model.execute(requests)]
    session = occ.load(artifact / "1/model.occ")
    for y, (x, n) in zip(got, ((THREE, 1), (1 - THREE, 2)), strict=True):
        np.testing.assert_allclose(y, np.repeat(session(x)[0], n, 0), rtol=1e-4, atol=1e-6)
    (bad,) = model.execute([[pb.Tensor("picture", np.zeros((1, 1, 9, 9), np.float32))]])
    assert "OCC0501" in str(bad.error)


def test_the_settings_for_mlserver_are_those_that_the_runtime_reads() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.M | re.S)
    settings = json.loads(text)
    source = (ROOT / "occ/serve/mlserver.py").read_text()
    assert settings["implementation"] == "occ.serve.mlserver.OccRuntime"
    assert "class OccRuntime(" in source
    for key in {*settings["parameters"]["extra"]} - {"threads"}:
        assert f'extra.pop("{key}"' in source


@pytest.mark.slow
def test_the_server_of_litserve_answers(artifact: Path) -> None:
    pytest.importorskip("litserve", reason="LitServe is not installed")
    port = free_port()
    (artifact / "1/model.occ").rename(artifact / "digits.occ")
    (artifact / "serve.py").write_text(block("litserve").replace("port=8000", f"port={port}, host='127.0.0.1'"))
    with open(artifact / "log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "serve.py"], cwd=artifact, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in range(3000):
            try:
                body = json.dumps({"picture": THREE[0].tolist()}).encode()
                asked = urllib.request.Request(
                    f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(asked, timeout=300) as answer:
                    assert json.loads(answer.read()) == {"digit": 3}
                    return
            except OSError:
                assert server.poll() is None, (artifact / "log").read_text()
                time.sleep(0.2)
        raise AssertionError((artifact / "log").read_text())
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # its workers outlive it otherwise
        server.wait()
