"""Sessions of onnxruntime that do not wait for occ: groups are compiled in a process of their own, for the sessions to come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import model_of

pytest.importorskip("onnxruntime", minversion="1.23", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain
PROGRAM = """
import json, sys, logging, time
import numpy as np, onnxruntime, occ
logging.basicConfig(level=logging.INFO)
occ.onnxruntime.register("cpu-jit", build=sys.argv[1], least=1)
start = time.process_time()
s = onnxruntime.InferenceSession("m.onnx", providers=["OccExecutionProvider", "CPUExecutionProvider"])
y = s.run(None, {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)})[0]
print(json.dumps({"y": y.tolist(), "groups": len(occ.onnxruntime.claimed())}))
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    onnx.save(
        model_of("g (float[n,8] x) => (float[n,8] y) { h = Exp(x)  k = Tanh(h)  y = Softmax(k) }"), tmp_path / "m.onnx"
    )
    env = os.environ | {"OCC_CACHE_DIR": str(tmp_path / "cache")}

    def made(way: str) -> tuple[dict[str, Any], str]:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, way], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout), ran.stderr

    return made


def test_a_first_session_does_not_wait_and_a_later_one_has_the_code(run: Any, tmp_path: Path) -> None:
    first, said = run("background")
    assert first["groups"] == 0
    assert "a group of 3 nodes is compiled in the background" in said
    end = time.monotonic() + 300
    while not list((tmp_path / "cache").glob("group/*/*.occ")):
        assert time.monotonic() < end, "nothing was compiled"
        time.sleep(0.2)
    later, said = run("never")
    assert later["groups"] == 1
    assert "background" not in said
    np.testing.assert_allclose(first["y"], later["y"], rtol=1e-5)


def test_never_compiles_nothing(run: Any, tmp_path: Path) -> None:
    made, said = run("never")
    assert made["groups"] == 0
    assert "background" not in said
    assert not list((tmp_path / "cache").glob("group/*/*.occ"))
    assert run("wait")[0]["groups"] == 1


def test_what_cannot_be_compiled_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from occ.compiler.cache.cache import Cache
    from occ.onnxruntime import background, claims

    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("occ.onnxruntime.compile_group.compile_group", lambda *_: "it has a fault")
    asked = tmp_path / "asked"
    asked.mkdir()
    (asked / background.REQUEST).write_text(json.dumps({"key": "ab12", "target": "cpu-jit", "options": {}}))
    (asked / background.MODEL).write_bytes(b"")
    background.main(str(asked))
    assert not asked.exists()
    assert Cache().has("group", "ab12", background.REFUSED)
    started: list[str] = []
    monkeypatch.setattr(claims, "start", lambda _, key, *more: started.append(key))
    held: Any = claims.Claims(None, "cpu-jit", way="background")
    model = onnx.ModelProto()
    assert held._later(model, b"", "ab12", Cache()) is None
    assert held._later(model, b"", "cd34", Cache()) == held._later(model, b"", "cd34", Cache()) == claims.PENDING
    assert started == ["cd34"], "once in a process"


def test_another_word_is_refused() -> None:
    import occ

    with pytest.raises(ValueError, match="known are wait, background, never"):
        occ.onnxruntime.register(build="later")
