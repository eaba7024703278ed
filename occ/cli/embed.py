"""`occ embed`: vectors of texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np

from occ.cli import options
from occ.cli.console import say
from occ.generation.embedding_folder import POOLINGS


@click.command("embed")
@click.argument("model", metavar="DIR")
@click.option("--text", "texts", multiple=True, help="A text; several give a vector each.")
@click.option("--lines", type=click.File("r", encoding="utf-8"), help="A file with a text on each line; - for stdin.")
@click.option("--query", help="Score how well each text answers this, with the folder of a reranker.")
@click.option("--prompt", default="", help="What to put before each text, or the name of a prompt of the folder.")
@click.option(
    "--pooling",
    type=click.Choice(POOLINGS),
    help="How one vector is made of those of the tokens; by default as the folder says.",
)
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Texts of a run.")
@click.option("--output", "-o", type=options.OutPath(), help="An .npy file for the vectors, instead of lines of JSON.")
@options.target
@options.threads
def command(
    model: str, texts: tuple[str, ...], lines: Iterable[str] | None, query: str | None, prompt: str,
    pooling: str | None, batch_size: int, output: Path | None, target: str, threads: int | None,
) -> None:  # fmt: skip
    """Make vectors of texts with the embedding model in the folder DIR, or score texts with a reranker.

    DIR has model.onnx or onnx/model.onnx, tokenizer.json, and what sentence-transformers writes beside them.
    """
    from occ.generation.embedding import EmbeddingModel, Reranker

    given = [*texts, *(line.rstrip("\r\n") for line in lines or ())]
    if not given:
        raise click.UsageError("give --text TEXT or --lines FILE")
    if query is not None and (prompt or pooling):
        raise click.UsageError("--query goes without --prompt and --pooling")
    if query is None:
        found = EmbeddingModel(Path(model), threads, target=target, batch_size=batch_size, pooling=pooling).embed(
            given, prompt=prompt
        )
    else:
        found = Reranker(Path(model), threads, target=target, batch_size=batch_size).rank(query, given)
    if output is not None:
        np.save(output, found)
        say(f"{output}: f32{list(found.shape)}")
        return
    key = "embedding" if query is None else "score"
    for text, x in zip(given, found.tolist(), strict=True):
        click.echo(json.dumps({"text": text, key: x}, ensure_ascii=False))
