"""A server of `occ serve` for tests, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ports import free_port


@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    @property
    def grpc(self) -> Any:
        import tritonclient.grpc as triton

        return triton.InferenceServerClient(f"127.0.0.1:{self.port + 1}")

    def post(self, path: str, data: object) -> tuple[int, Any]:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=600) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read() or b"null")

    def infer(self, x: np.ndarray, model: str = "m") -> np.ndarray:
        """Over gRPC, from any thread."""
        import tritonclient.grpc as triton

        given = triton.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        with self.grpc as client:
            return client.infer(model, [given], client_timeout=600).as_numpy("y")


def started(folder: Path, *args: str) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "occ.cli", "serve", *args, "--port", str(port)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    for _ in range(3000):
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=60):
                return Server(process, port, folder)
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise AssertionError((folder / "log").read_text())


def stop(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(300)
    except subprocess.TimeoutExpired:
        server.process.kill()
        raise
