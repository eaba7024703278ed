"""`occ embed`: vectors of texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from occ.cli import options
from occ.cli.console import say
from occ.cli.numbers import Whole
from occ.generation.embedding_folder import POOLINGS
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class _Embedding:
    """The options about how texts become vectors or scores."""

    query: str | None
    prompt: str
    pooling: str | None
    batch_size: int
    threads: int | None


@click.command("embed")
@click.argument("model", metavar="DIR")
@click.option("--text", "texts", multiple=True, help="A text. Repeat for more, one vector each.")
@click.option("--lines", type=click.File("r", encoding="utf-8"), help="A file with a text on each line; - for stdin.")
@click.option("--query", help="Score how well each text answers this query, with a reranker.")
@click.option("--prompt", default="", help="Prefix of each text, or the name of a prompt in the folder.")
@click.option(
    "--pooling",
    type=click.Choice(POOLINGS),
    help="How to pool the vectors of tokens; by default as configured in the folder.",
)
@click.option("--batch-size", type=Whole(1), default=32, show_default=True, help="Texts in a run.")
@click.option("--output", "-o", type=options.OutPath(), help="An .npy file for the vectors, instead of lines of JSON.")
@options.target
@options.threads
@options.as_record(_Embedding, "how")
def command(
    model: str,
    target: str,
    texts: tuple[str, ...],
    lines: Iterable[str] | None,
    output: Path | None,
    how: _Embedding,
) -> None:
    """Make vectors of texts with the embedding model in the folder DIR, or score texts with a reranker.

    DIR has model.onnx or onnx/model.onnx, tokenizer.json, and what sentence-transformers writes beside them.
    """
    from occ.generation.embedding import EmbeddingModel, Reranker

    given = [*texts, *(line.rstrip("\r\n") for line in lines or ())]
    if not given:
        raise click.UsageError("use --text TEXT or --lines FILE")
    if how.query is not None and (how.prompt or how.pooling):
        raise click.UsageError("--query cannot be combined with --prompt and --pooling")
    common: dict[str, Any] = {"target": target, "batch_size": how.batch_size}
    if how.query is None:
        found = EmbeddingModel(Path(model), how.threads, pooling=how.pooling, **common).embed(given, prompt=how.prompt)
    else:
        found = Reranker(Path(model), how.threads, **common).rank(how.query, given)
    if output is not None:
        np.save(output, found)
        say(f"{output}: f32{list(found.shape)}")
        return
    key = "embedding" if how.query is None else "score"
    for text, x in zip(given, found.tolist(), strict=True):
        click.echo(json.dumps({"text": text, key: x}, ensure_ascii=False))
