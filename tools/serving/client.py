"""A client that counts on nothing: plain HTTP to a server of OpenAI's protocol."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes:
        url: of its root, such as `http://127.0.0.1:8000`.
        model: the name in requests.
        key: what it asks for, or empty.
    """

    url: str
    model: str
    key: str = ""

    @classmethod
    def at(cls, url: str, key: str = "") -> Target:
        """The server of a URL, with the first model that it serves."""
        found = cls(url.rstrip("/"), "", key)
        return replace(found, model=json.loads(found.ask("/v1/models")[1])["data"][0]["id"])

    def connection(self) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=600)

    def send(self, connection: http.client.HTTPConnection, path: str, body: bytes | dict[str, Any] | None) -> None:
        """Send a request, and read nothing."""
        data = json.dumps(body | {"model": self.model}).encode() if isinstance(body, dict) else body
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        connection.request("GET" if data is None else "POST", path, data, headers)

    def ask(
        self, path: str, body: bytes | dict[str, Any] | None = None, over: http.client.HTTPConnection | None = None
    ) -> tuple[int, str]:
        """Status and body of an answer.

        Args:
            path: after the root.
            body: JSON to which the name of the model is added, or bytes as they are; None asks by GET.
            over: a connection to keep; by default one for this request.

        Raises:
            OSError, http.client.HTTPException: there is no answer.
        """
        connection = over or self.connection()
        try:
            self.send(connection, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            if over is None:
                connection.close()

    def metric(self, name: str) -> float:
        """A number of `/metrics`, 0 if it is not there."""
        found = re.search(rf"^{name} (\S+)$", self.ask("/metrics")[1], re.M)
        return float(found[1]) if found else 0.0
