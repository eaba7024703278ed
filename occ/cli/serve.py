"""`occ serve`: an HTTP server with OpenAI's protocol for language models, and KServe's for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from occ.cli import options
from occ.cli.artifact_options import check_as_built
from occ.cli.console import Terminated, progress, say
from occ.cli.numbers import Whole
from occ.cli.option_values import dims_of, pairs
from occ.serve.ports import check_ports

if TYPE_CHECKING:
    from occ.runtime.errors import RunError


@click.command("serve")
@click.argument("models", metavar="[NAME=]MODEL...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=Whole(1, 65533), default=8000, show_default=True, help="Port to listen at.")
@click.option("--parallel", type=Whole(1), default=4, show_default=True, help="Maximum number of texts in a batch.")
@click.option(
    "--capacity", type=int, default=4096, show_default=True, help="Maximum tokens of a prompt and its continuation."
)
@click.option(
    "--adapter",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of a peft LoRA adapter, to add to the weights of a .gguf file or a folder of safetensors.",
)
@click.option(
    "--workers", type=Whole(0), default=0, help="Number of processes that run models; by default the server's own."
)
@click.option(
    "--batch", type=Whole(1), default=32, show_default=True, help="Maximum rows of a batch; 1 for no batching."
)
@click.option("--max-request", type=Whole(1), default=256, show_default=True, help="Maximum size of a request in MiB.")
@click.option(
    "--max-waiting",
    type=Whole(0),
    default=256,
    show_default=True,
    help="Maximum number of waiting requests to a language model; more get status 429.",
)
@click.option(
    "--api-key",
    envvar="OCC_API_KEY",
    default="",
    help="API key that clients of a language model must send.",
)
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Origin of web pages that may call a language model; * for all.",
)
@options.draft
@options.draft_tokens
@click.option(
    "--score-prompts",
    is_flag=True,
    help="Score prompts (echo with logprobs) 32 tokens at a time, which makes reading others a little slower.",
)
@options.target
@options.threads
@click.option("--dim", "dims", multiple=True, metavar="NAME=4", help="Fix a symbolic dim.")
@options.target_options
def command(
    models: tuple[str, ...], host: str, port: int, parallel: int, capacity: int, adapter: Path | None, workers: int,
    batch: int,
    max_request: int, max_waiting: int, api_key: str, cors: tuple[str, ...], draft: str | None, draft_tokens: int,
    score_prompts: bool, target: str, threads: int | None, dims: tuple[str, ...], given: tuple[str, ...],
) -> None:  # fmt: skip
    """Serve models over HTTP.

    The folder of a language model, or its .gguf file, is served in the form of OpenAI's API: /v1/completions and
    /v1/chat/completions; that of an embedding model at /v1/embeddings, that of a reranker at /v1/rerank. Other
    models and artifacts, several at once, are served by MLServer in KServe's V2 protocol: REST at the port, gRPC at the
    next one, metrics at the one after it.
    """
    if any(_is_language_model(m) for m in models):
        if len(models) != 1:
            raise click.UsageError("a language model must be the only one")
        settings = {"parallel": parallel, "waiting": max_waiting, "api_key": api_key, "origins": cors}
        settings["max_request"] = max_request << 20
        how = {"threads": threads, "capacity": capacity, "several": parallel > 1 and draft is None, "adapter": adapter}
        how |= {"draft": draft, "draft_tokens": draft_tokens, "score_prompts": score_prompts, "target": target}
        how |= {"options": pairs(given, "-C", keys=True)}
        _serve_language_model(models[0], host, port, settings, how)
        return
    for name, value in (("adapter", adapter), ("draft", draft), ("score-prompts", score_prompts or None)):
        if value is not None:
            raise click.UsageError(f"--{name} is for language models")
    found = _named(models)
    extra = {"target": target, "dims": dims_of(dims), "options": pairs(given, "-C", keys=True)}
    if find_spec("mlserver") is None:
        raise _missing("mlserver", "mlserver")
    check_ports(host, port, 3)
    for path in found.values():
        _prepare(path, extra)
    from occ.serve.server import Serving, serve

    places = f"http://{host}:{port}/v2, gRPC at {port + 1}, metrics at http://{host}:{port + 2}/metrics"
    how = Serving(host, port, workers, threads, batch, max_request << 20)
    serve(found, how, extra, lambda: say(f"serving {', '.join(found)} at {places}"))


def _is_language_model(path: str) -> bool:
    if Path(path).suffix in (".gguf", ".safetensors"):
        return True
    return Path(path).is_dir() and not (Path(path) / "manifest.json").exists()


def _missing(library: str | None, extra: str) -> RunError:
    from occ.runtime.errors import RunError

    return RunError("OCC0501", f"the server needs the library `{library}`", f"pip install 'occ-compiler[{extra}]'")


def _named(models: Sequence[str]) -> dict[str, Path]:
    """Models by the names under which they are served: NAME=PATH, or the name of the file."""
    found: dict[str, Path] = {}
    for text in models:
        name, _, path = text.rpartition("=")
        name = name or Path(path).stem
        if name in found:
            raise click.UsageError(f"two models are called `{name}`: use NAME={path}")
        if not name.isascii() or not all(c.isalnum() or c in "._-" for c in name) or name.startswith("."):
            raise click.UsageError(f"`{name}` is not a name for a URL: use NAME={path}")
        found[name] = Path(path)
    return found


def _prepare(path: Path, extra: Mapping[str, Any]) -> None:
    """Compile a model into the build cache, or open an artifact, before listening: both report errors."""
    from occ.api import compile as compile_
    from occ.loading import load

    if options.is_artifact(str(path)):
        check_as_built(str(path), load(path).artifact.manifest.target)
        return
    with progress() as tell:
        tell(f"compiling {path.name}")
        compile_(path, **extra)


def _serve_language_model(
    model: str, host: str, port: int, settings: Mapping[str, Any], how: Mapping[str, Any]
) -> None:
    """Listen immediately, and announce the model when it is ready.

    Args:
        model: a folder or a file.
        host: the address to listen at.
        port: of that address.
        settings: of the server.
        how: arguments of `LanguageModel`; other models only use its `threads`.
    """
    from occ.generation.embedding import EmbeddingModel, Reranker
    from occ.generation.embedding_folder import encoder_kind
    from occ.generation.folder import Folder
    from occ.runtime.errors import RunError

    try:
        import uvicorn

        from occ.generation.model_kinds import LanguageModel
        from occ.serve.openai.app import ServerSettings, create_app
    except ModuleNotFoundError as e:
        raise _missing(e.name, "serve") from None
    check_ports(host, port, 1)
    path = Path(model)
    kind = encoder_kind(path)
    if not kind and Folder.of(path).tokenizer is None:
        raise RunError("OCC0501", f"`{model}` has no tokenizer.json", "add the tokenizer of the model")
    if kind and how["adapter"] is not None:
        raise RunError("OCC0501", f"no adapter is added to `{model}`, which is in ONNX", "merge it before the export")
    if kind and (how["draft"] is not None or how["options"]):
        what = "drafts" if how["draft"] is not None else "options"
        raise RunError("OCC0501", f"`{model}` is for {kind}, which takes no {what}", "leave them out")
    name, failures = path.resolve().name, list[Exception]()

    def ready(failure: Exception | None) -> None:
        if failure is None:
            say(f"serving `{name}` at http://{host}:{port}/v1")
        else:
            failures.append(failure)
            server.should_exit = True

    app = create_app(
        ServerSettings(name=name, **settings),
        {
            "embedding": lambda: EmbeddingModel(path, how["threads"]),
            "reranking": lambda: Reranker(path, how["threads"]),
            "": lambda: LanguageModel(path, **how),
        }[kind],
        ready,
    )
    say(f"building `{name}`; http://{host}:{port}/health says when it is ready")
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
    with suppress(KeyboardInterrupt, Terminated):  # raised again by uvicorn when all requests are answered
        server.run()
    if failures:
        raise failures[0]
