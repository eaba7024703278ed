"""A server of OpenAI's protocol in a thread, for tests: a tiny decoder whose tokens are bytes, and clients of it."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import decoders
import onnx
import pytest

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("llguidance", reason="pip install llguidance: grammars")
pytest.importorskip("jinja2")

KEY, EOS = "a key", 0
TEMPLATE = (
    "{% if tools %}{{ tools[0].type | tojson(indent=1, sort_keys=True) }}<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    "{% if shout is defined %}!{% endif %}a:"
)


def write_folder(path: Path) -> None:
    """A decoder of random weights whose tokens are bytes."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<eos>": EOS} | {c: k + 1 for k, c in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<eos>"])
    made.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    with pytest.MonkeyPatch.context() as m:
        m.setattr(decoders, "WORDS", 257)
        onnx.save(decoders.decoder(), path / "model.onnx")


MESSAGES = [{"role": "user", "content": "hello"}]


class Served:
    """A server in a thread, and clients of it."""

    def __init__(self, app: Any) -> None:
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        (self.port,) = (s.getsockname()[1] for x in self.server.servers for s in x.sockets)
        url = f"http://127.0.0.1:{self.port}/v1"
        self.client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=300)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, str]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, body, {"Authorization": f"Bearer {KEY}", **headers})
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read().decode()
        connection.close()
        return found

    def wait(self, path: str = "/health", status: int = 200) -> None:
        while self.ask("GET", path)[0] != status:
            time.sleep(0.01)

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self.ask("GET", "/metrics")[2], re.M)
        assert found is not None, name
        return float(found[1])

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(60)
