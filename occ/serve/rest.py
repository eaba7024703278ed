"""Middleware that completes MLServer's REST API to the V2 protocol of Triton.

Binary tensors, statistics, model configuration, JSON bodies with another content type (`curl -d` labels them as forms),
and a server that is ready only when all models are. Sources: docs/protocol/extension_{binary_data,statistics,
model_configuration}.md of https://github.com/triton-inference-server/server.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from mlserver import MLServer  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue] - an extra
from mlserver.errors import InferenceError, MLServerError  # pyright: ignore[reportMissingImports]
from mlserver.types import RepositoryIndexRequest  # pyright: ignore[reportMissingImports]
from mlserver.utils import extract_headers, insert_headers  # pyright: ignore[reportMissingImports]
from prometheus_client import REGISTRY, CollectorRegistry  # pyright: ignore[reportMissingImports]
from prometheus_client.multiprocess import MultiProcessCollector  # pyright: ignore[reportMissingImports]
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from occ.serve.tensors import HEADER, body_of, request_of

EXTENSIONS = ["binary_tensor_data", "statistics", "model_configuration", "model_repository"]
_FORM = "application/x-www-form-urlencoded"
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # of zlib, by Content-Encoding


class _AlwaysJson:
    """An ASGI application that reads bodies as JSON even if simple clients label them as forms."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            headers = MutableHeaders(scope=scope)
            if headers.get("content-type", _FORM).startswith(_FORM):
                headers["content-type"] = "application/json"
        await self._app(scope, receive, send)


class RestFront:
    """The routes of a server.

    Args:
        server: receives them.
        largest: maximum bytes of a request's inputs; its body may be ten times as large, as JSON is.
        workers: whether models run in separate processes.
        loaded: whether all models are loaded.
    """

    def __init__(self, server: MLServer, largest: int, *, workers: bool, loaded: Callable[[], bool]) -> None:
        self._plane, self._repository = server._data_plane, server._model_repository_handlers
        self._largest, self._workers, self._loaded = 10 * largest, workers, loaded
        app = server._rest_server._app
        app.router.routes[:0] = [
            *_versions("infer", self._infer, "POST"),
            *_versions("stats", self._statistics, "GET"),
            *_versions("config", self._config, "GET"),
            Route("/v2/models/stats", self._statistics, methods=["GET"]),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/health/ready", self._ready, methods=["GET"]),
        ]
        app.add_middleware(_AlwaysJson)

    async def _infer(self, request: Request) -> Response:
        payload = request_of(await self._body(request), _header(request))
        insert_headers(payload, dict(request.headers))
        answer = await self._plane.infer(payload, **_named(request))
        headers = extract_headers(answer) or {}
        body, header = body_of(answer, payload)
        if header is None:
            return Response(body, headers=headers, media_type="application/json")
        return Response(body, headers=headers | {HEADER: str(header)}, media_type="application/octet-stream")

    async def _body(self, request: Request) -> bytes:
        """The body, decompressed.

        Raises:
            MLServerError: 413, it is too large; 400, it does not match its header.
        """
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding not in {*_WINDOWS, "identity"}:
            raise MLServerError(f"the body is `{encoding}`; known are {', '.join(_WINDOWS)}", status_code=400)
        unpack = zlib.decompressobj(_WINDOWS[encoding]) if encoding in _WINDOWS else None
        parts, size = list[bytes](), 0
        async for chunk in request.stream():
            try:
                parts.append(unpack.decompress(chunk, self._largest + 1 - size) if unpack else chunk)
            except zlib.error as e:
                raise MLServerError(f"the body is no {encoding}: {e}", status_code=400) from None
            size += len(parts[-1])
            if size > self._largest:
                raise MLServerError(f"the body has more than {self._largest} bytes", status_code=413)
        return b"".join(parts)

    async def _statistics(self, request: Request) -> Response:
        asked = request.path_params.get("model_name")
        models = [request.path_params] if asked else [{"model_name": r.name} for r in await self._models()]
        for model in models if asked else ():
            await self._plane.model_metadata(asked, model.get("model_version"))  # 404 if there is no such model
        samples = _samples(self._workers)
        return JSONResponse({"model_stats": [_statistics(m["model_name"], samples) for m in models]})

    async def _config(self, request: Request) -> Response:
        found = await self._plane.model_metadata(**_named(request))
        ports = {
            kind: [
                {"name": t.name, "data_type": f"TYPE_{t.datatype}", "dims": t.shape} for t in getattr(found, kind) or ()
            ]
            for kind in ("inputs", "outputs")
        }
        return JSONResponse(
            {
                "name": found.name, "platform": found.platform, "backend": "occ", "max_batch_size": 0,
                "input": ports["inputs"], "output": ports["outputs"],
                "instance_group": [{"name": found.name, "kind": "KIND_CPU", "count": 1}],
            }
        )  # fmt: skip

    async def _models(self) -> list[Any]:
        return list((await self._repository.index(RepositoryIndexRequest())).root)

    async def _index(self, request: Request) -> Response:
        """The models of the repository, or those that are ready; Triton's clients send no body."""
        try:
            asked = RepositoryIndexRequest.model_validate_json(await self._body(request) or b"{}")
        except ValueError as e:
            raise InferenceError(f"the body is not a request for an index: {e}") from None
        found = await self._repository.index(asked)
        return JSONResponse([r.model_dump(mode="json", exclude_none=True) for r in found.root])

    async def _ready(self, _: Request) -> Response:
        return Response(status_code=200 if self._loaded() and await self._plane.ready() else 503)


def _versions(what: str, answer: Any, method: str) -> list[Route]:
    places = "/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"
    return [Route(f"{place}/{what}", answer, methods=[method]) for place in places]


def _named(request: Request) -> dict[str, str | None]:
    return {"name": request.path_params["model_name"], "version": request.path_params.get("model_version")}


def _header(request: Request) -> int | None:
    text = request.headers.get(HEADER)
    if text is not None and not (text.isascii() and text.isdigit()):
        raise InferenceError(f"{HEADER} is {text!r}, which is not a number")
    return None if text is None else int(text)


def _samples(workers: bool) -> dict[tuple[str, str], float]:
    """The sum of each metric for each model, over all processes."""
    registry: Any = REGISTRY
    if workers:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
    made: dict[tuple[str, str], float] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            key = sample.name, sample.labels.get("model", "")
            made[key] = made.get(key, 0) + sample.value
    return made


def _statistics(model: str, samples: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Statistics of a model: requests with their durations, rows, and runs."""

    def counted(name: str) -> int:
        return int(samples.get((name, model), 0))

    good, bad = counted("model_infer_request_success_total"), counted("model_infer_request_failure_total")
    seconds = samples.get(("model_infer_request_duration_sum", model), 0.0)
    success = {"count": good, "ns": int(1e9 * seconds * good / max(1, good + bad))}
    return {
        "name": model, "version": "", "inference_count": counted("occ_batch_rows_sum"),
        "execution_count": counted("occ_batch_rows_count"),
        "inference_stats": {"success": success, "fail": {"count": bad, "ns": int(1e9 * seconds) - success["ns"]}},
    }  # fmt: skip
