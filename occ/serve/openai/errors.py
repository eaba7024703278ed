"""Errors in the form of OpenAI's API."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from occ.generation.batch_scheduler import QueueIsFull
from occ.runtime.errors import RunError


class ErrorResponse(JSONResponse):
    """An error, in ASCII: quoted input may be invalid text."""

    def __init__(self, status: int, message: str, code: str | None = None, kind: str = "invalid_request_error") -> None:
        super().__init__({"error": {"message": message, "type": kind, "param": None, "code": code}}, status)

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


def add_errors(app: FastAPI) -> None:
    """Make an application answer with such errors, whatever fails."""

    @app.exception_handler(RunError)
    async def refused(_: Request, e: RunError) -> Response:  # pyright: ignore[reportUnusedFunction]
        return ErrorResponse(400, f"{e.message} ({e.help})" if e.help else e.message, e.code)

    @app.exception_handler(QueueIsFull)
    async def full(_: Request, e: QueueIsFull) -> Response:  # pyright: ignore[reportUnusedFunction]
        made = ErrorResponse(429, "too many requests wait; try again later", "queue_is_full", "rate_limit_error")
        made.headers["Retry-After"] = "1"
        return made

    @app.exception_handler(RequestValidationError)
    async def misread(r: Request, e: RequestValidationError) -> Response:  # pyright: ignore[reportUnusedFunction]
        kind = r.headers.get("content-type", "")
        if "json" not in kind.lower():
            return ErrorResponse(
                400, f"the body is `{kind}`: send JSON, with the header Content-Type: application/json"
            )
        return ErrorResponse(400, _mistake(e.errors()))

    @app.exception_handler(HTTPException)
    async def other(_: Request, e: HTTPException) -> Response:  # pyright: ignore[reportUnusedFunction]
        return ErrorResponse(e.status_code, str(e.detail), "request_too_large" if e.status_code == 413 else None)

    @app.exception_handler(Exception)
    async def failed(_: Request, e: Exception) -> Response:  # pyright: ignore[reportUnusedFunction]
        return ErrorResponse(500, f"the server failed: {type(e).__name__}", None, "server_error")

    @app.exception_handler(RecursionError)
    async def nested(_: Request, e: RecursionError) -> Response:  # pyright: ignore[reportUnusedFunction]
        return ErrorResponse(400, "the body is nested too deeply")


def _mistake(found: Sequence[Mapping[str, Any]]) -> str:
    """The most deeply nested error: if a field takes several forms, that of the form most like it."""
    if found[0]["type"] == "json_invalid":
        return f"the body is not JSON: {found[0]['ctx']['error']} (at character {found[0]['loc'][-1]})"
    deepest = max(found, key=lambda e: len(e["loc"]))
    forms = ("function-before", "list[", "constrained-", "nullable[")  # pydantic's names of forms of one field
    place = ".".join(str(x) for x in deepest["loc"][1:] if not str(x).startswith(forms))
    return f"{place}: {deepest['msg'].removeprefix('Value error, ')}".removeprefix(": ")
