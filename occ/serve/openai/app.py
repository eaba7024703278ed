"""The server as an ASGI application: routes, keys and limits."""

import asyncio
import hmac
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from occ.generation.embedding import TextEncoder
from occ.generation.language_model import LanguageModel
from occ.generation.tokenizer import Tokenizer
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.serve.openai.encoders import EncoderService
from occ.serve.openai.errors import ErrorResponse, add_errors
from occ.serve.openai.metrics import Metrics
from occ.serve.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ResponseRequest,
    TokenizeRequest,
)  # fmt: skip
from occ.serve.openai.routes import Answering
from occ.serve.openai.service import Service


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server.

    Attributes:
        name: how clients call the model.
        parallel: texts generated at once.
        waiting: maximum waiting requests; more are answered with 429.
        api_key: required from clients; empty for none.
        origins: allowed web page origins, for CORS; `*` for all.
        max_request: bytes of a request's body; larger ones are answered with 413.
    """

    name: str
    parallel: int = 4
    waiting: int = 256
    api_key: str = ""
    origins: Sequence[str] = ()
    max_request: int = 256 << 20


class State:
    """The state of the server: its service, or why there is none."""

    def __init__(self) -> None:
        self.service: Service | EncoderService | None = None
        self.failure: Exception | None = None

    @property
    def writing(self) -> Service:
        """The service of a language model.

        Raises:
            RunError: OCC0501 the model is an encoder.
        """
        if not isinstance(self.service, Service):
            raise RunError("OCC0501", "the model does not generate text", "ask /v1/embeddings or /v1/rerank")
        return self.service

    @property
    def encoding(self) -> EncoderService:
        """The service that computes embeddings.

        Raises:
            RunError: OCC0501 the model generates text.
        """
        if not isinstance(self.service, EncoderService):
            raise RunError("OCC0501", "the model generates text, not vectors", "serve the folder of an embedding model")
        return self.service

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        if isinstance(self.service, EncoderService):
            return self.service.encoder.tokenizer
        found = self.writing.lm.tokenizer
        assert found is not None, "checked before the server starts"
        return found


def create_app(
    settings: ServerSettings,
    load: Callable[[], LanguageModel | TextEncoder],
    ready: Callable[[Exception | None], object] = bool,
) -> FastAPI:
    """The application. It listens while the model is built, and answers 503 until then.

    Args:
        settings: names, limits, keys.
        load: builds or opens the model, in a thread that ends with the process.
        ready: called when the model is ready, or with the error if it fails.
    """
    state, metrics = State(), Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        task = asyncio.create_task(_load(state, metrics, settings, load, ready))
        yield
        task.cancel()

    made = FastAPI(title="occ", lifespan=lifespan)
    made.add_middleware(Gate, settings=settings, state=state, metrics=metrics)
    if settings.origins:
        made.add_middleware(
            CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["*"], allow_headers=["*"]
        )
    add_errors(made)
    _add_routes(made, settings, state, metrics)
    _add_encoder_routes(made, state)
    return made


async def _load(
    state: State, metrics: Metrics, settings: ServerSettings, load: Callable[[], LanguageModel | TextEncoder],
    ready: Callable[[Exception | None], object],
) -> None:  # fmt: skip
    try:
        model = await _in_daemon(load)
        if isinstance(model, TextEncoder):
            state.service = EncoderService(model, settings.name, settings.waiting)
        else:
            state.service = Service(model, settings.parallel, settings.waiting)
            metrics.watch(state.service.scheduler)
            state.service.prepare_grammars()
    except Exception as e:  # reported to the waiting caller, and to clients
        state.failure = e
    ready(state.failure)


async def _in_daemon(load: Callable[[], LanguageModel | TextEncoder]) -> LanguageModel | TextEncoder:
    """The result of `load`, run in a thread for which a server that ends does not wait."""
    made: Future[LanguageModel | TextEncoder] = Future()
    made.set_running_or_notify_cancel()  # from here on it is not cancelled

    def run() -> None:
        try:
            made.set_result(load())
        except BaseException as e:
            made.set_exception(e)

    threading.Thread(target=run, name="occ-load", daemon=True).start()
    return await asyncio.wrap_future(made)


_OPEN = ("/health", "/metrics")  # without a key, for probes


class Gate:
    """Checks keys and sizes, answers 503 while there is no model, and counts: an ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, state: State, metrics: Metrics) -> None:
        self._app, self._settings, self._state, self._metrics = app, settings, state, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 499  # if nothing is sent, the client has hung up

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refused = _refused(Request(scope), self._settings, self._state)
            await (refused or self._app)(scope, _limited(receive, self._settings.max_request), sent)
        finally:
            path = scope["path"] if status != 404 else "other"
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.observe(time.perf_counter() - begun)


def _limited(receive: Receive, most: int) -> Receive:
    """Receives at most so many bytes of a body, whatever its header says.

    Raises:
        HTTPException: 413 there are more.
    """
    left = most

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"the body is larger than {most >> 20} MiB")
        return message

    return limited


def _refused(request: Request, settings: ServerSettings, state: State) -> Response | None:
    if request.url.path in _OPEN or request.method == "OPTIONS":
        return None
    if settings.api_key:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), settings.api_key.encode()):
            return ErrorResponse(401, "the API key is missing or wrong", "invalid_api_key", "authentication_error")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > settings.max_request:
        return ErrorResponse(413, f"the body is larger than {settings.max_request >> 20} MiB", "request_too_large")
    if state.service is None:
        why = "the model could not be built" if state.failure else "the model is being built"
        return ErrorResponse(503, why, "model_not_ready", "server_error")
    return None


def _add_routes(app: FastAPI, settings: ServerSettings, state: State, metrics: Metrics) -> None:
    def answering(request: Request) -> Answering:
        return Answering(state.writing, settings.name, request, metrics)

    @app.get("/health")
    async def health() -> Response:  # pyright: ignore[reportUnusedFunction]
        if state.service is not None:
            return JSONResponse({"status": "ok"})
        status = "failed" if state.failure else "building"
        return JSONResponse({"status": status, "error": str(state.failure) if state.failure else None}, 503)

    @app.get("/metrics")
    async def counted() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    one = {"id": settings.name, "object": "model", "created": int(time.time()), "owned_by": "occ"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return {"object": "list", "data": [one]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        return (
            JSONResponse(one)
            if name == settings.name
            else ErrorResponse(404, f"there is no model `{name}`", "model_not_found")
        )

    @app.post("/v1/completions")
    async def completions(asked: CompletionRequest, request: Request) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await answering(request).completion(asked)

    @app.post("/v1/chat/completions")
    async def chats(asked: ChatRequest, request: Request) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await answering(request).chat(asked)

    @app.post("/v1/responses")
    async def responses(asked: ResponseRequest, request: Request) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await answering(request).response(asked)


def _add_encoder_routes(app: FastAPI, state: State) -> None:
    """Routes that generate nothing: vectors, ranks and tokens."""

    @app.post("/v1/embeddings")
    async def embeddings(asked: EmbeddingRequest) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await state.encoding.embed(asked)

    @app.post("/v1/rerank")
    async def rerank(asked: RerankRequest) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await state.encoding.rerank(asked)

    @app.post("/tokenize")
    async def tokenize(asked: TokenizeRequest) -> Any:  # pyright: ignore[reportUnusedFunction]
        return {"tokens": state.tokenizer.encode(asked.content, special=asked.add_special)}

    @app.post("/detokenize")
    async def detokenize(asked: DetokenizeRequest) -> Any:  # pyright: ignore[reportUnusedFunction]
        try:
            return {"content": state.tokenizer.decode(asked.tokens)}
        except (OverflowError, TypeError):
            raise RunError(
                "OCC0501", "a token is not a number of the vocabulary", "use tokens of the model's vocabulary"
            ) from None
