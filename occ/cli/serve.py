"""`occ serve`: an HTTP server for a language model."""

from __future__ import annotations

from pathlib import Path

import click

from occ.cli import options
from occ.cli.console import say


@click.command("serve")
@click.argument("model", metavar="DIR")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port to listen at.")
@click.option(
    "--parallel", type=click.IntRange(1), default=4, show_default=True, help="Texts that are written at once."
)
@click.option("--capacity", type=int, default=4096, show_default=True, help="Tokens of a prompt and its continuation.")
@options.threads
def command(model: str, host: str, port: int, parallel: int, capacity: int, threads: int | None) -> None:
    """Serve the language model in the folder DIR in the form of OpenAI's API: /v1/completions and /v1/chat/completions."""
    from occ.generation.language_model import LanguageModel
    from occ.runtime.errors import RunError

    try:
        import uvicorn

        from occ.generation.server import app
    except ModuleNotFoundError as e:
        raise RunError("OCC0501", f"the server needs the library `{e.name}`", "pip install 'occ[serve]'") from None
    lm = LanguageModel(Path(model), threads, capacity)
    if lm.tokenizer is None:
        raise RunError("OCC0501", f"`{model}` has no tokenizer.json", "add the tokenizer of the model")
    say(f"serving `{Path(model).resolve().name}` at http://{host}:{port}/v1")
    uvicorn.run(app(lm, Path(model).resolve().name, parallel), host=host, port=port, log_level="warning")
