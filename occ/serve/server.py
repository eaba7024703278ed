"""Starts MLServer with models of occ, for `occ serve`."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlserver import MLServer  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue] - an extra
from mlserver.settings import ModelSettings, Settings  # pyright: ignore[reportMissingImports]

from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.threads import default_threads
from occ.serve.rest import EXTENSIONS, RestFront


@dataclass(frozen=True)
class Serving:
    """How a server serves.

    Attributes:
        host: address to listen at.
        port: for REST; gRPC uses the next one, metrics the one after it.
        workers: processes that run models; 0 runs them in the server's own.
        threads: of a run; None divides the processors among the workers.
        batch: rows of a batch; 1 for none.
        max_request: bytes of a request.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 0
    threads: int | None = None
    batch: int = 32
    max_request: int = 256 << 20


def repository(models: Mapping[str, Path], how: Serving, extra: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the settings of models, by name, as a model repository of MLServer; returns the files."""
    threads = how.threads or max(1, default_threads() // max(1, how.workers))
    written: list[Path] = []
    for name, path in models.items():
        place = folder / name / "model-settings.json"
        place.parent.mkdir(parents=True)
        more = {**extra, "threads": threads, "batch": how.batch, "max_request_bytes": how.max_request}
        parameters = {"uri": str(path.resolve()), "extra": more}
        place.write_text(
            json.dumps({"name": name, "implementation": "occ.serve.mlserver.OccRuntime", "parameters": parameters})
        )
        written.append(place)
    return written


def serve(models: Mapping[str, Path], how: Serving, extra: Mapping[str, Any], ready: Callable[[], object]) -> None:
    """Serve models, by name, until the process gets to stop.

    Args:
        models: ONNX files or artifacts.
        how: ports, processes, batches.
        extra: arguments of `occ.compile`.
        ready: called when all models are loaded.

    Raises:
        RunError: a model cannot be opened, or a port is taken.
    """
    with tempfile.TemporaryDirectory(prefix="occ-serve-") as place:
        folder = Path(place)
        found = [ModelSettings.parse_file(str(p)) for p in repository(models, how, extra, folder / "models")]
        for settings in found:
            settings._source = str(folder / "models" / settings.name / "model-settings.json")
        try:
            asyncio.run(_serve(_settings(how, folder), found, how, ready))
        except SystemExit as e:  # of uvicorn, which has reported the reason
            if e.code:
                raise RunError("OCC0501", f"the server cannot serve at port {how.port}") from None


def _settings(how: Serving, folder: Path) -> Settings:
    return Settings(
        debug=False, host=how.host, http_port=how.port, grpc_port=how.port + 1, metrics_port=how.port + 2,
        parallel_workers=how.workers, model_repository_root=str(folder / "models"), load_models_at_startup=False,
        grpc_max_message_length=how.max_request, metrics_dir=str(folder / "metrics"), extensions=EXTENSIONS,
        environments_dir=str(folder / "environments"),
    )  # fmt: skip


async def _serve(settings: Settings, models: list[ModelSettings], how: Serving, ready: Callable[[], object]) -> None:
    if settings.parallel_workers:
        Path(settings.metrics_dir).mkdir(exist_ok=True)
    server, loaded, failed = MLServer(settings), set[str](), list[Exception]()
    load = server._model_registry.load

    async def watched(model: ModelSettings) -> Any:
        try:
            made = await load(model)
        except Exception as e:
            failed.append(e)
            raise
        if model.name not in loaded:
            loaded.add(model.name)
            if len(loaded) == len(models):
                ready()
        return made

    server._model_registry.load = watched
    RestFront(server, how.max_request, workers=bool(how.workers), loaded=lambda: len(loaded) == len(models))
    await server.start(models)
    if failed and len(loaded) < len(models):  # MLServer then stops as on request
        raise RunError("OCC0501", str(failed[0]))
