"""`occ generate`: write text with a language model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from occ.cli import options
from occ.cli.console import say
from occ.cli.numbers import Whole
from occ.cli.option_values import pairs


@click.command("generate")
@click.argument("model", metavar="DIR")
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    help="The text to continue. Several are continued together, and written as lines of JSON in the end.",
)
@click.option(
    "--tokens", multiple=True, metavar="ID,ID,...", help="Tokens to continue, for a folder without a tokenizer."
)
@click.option("--chat", is_flag=True, help="Take the prompt as what a user says, in the chat template of the model.")
@click.option("--max-new-tokens", type=Whole(0), default=64, show_default=True, help="When to stop at the latest.")
@click.option("--greedy", is_flag=True, help="Always take the most probable token.")
@click.option(
    "--temperature",
    type=float,
    default=0.8,
    show_default=True,
    help="Below 1 makes probable tokens more so; 0 is --greedy.",
)
@click.option("--top-k", type=int, default=50, show_default=True, help="Only so many of the most probable; 0 for all.")
@click.option(
    "--top-p", type=float, default=0.95, show_default=True, help="Only the most probable that together have this."
)
@click.option(
    "--min-p", type=float, default=0.0, show_default=True, help="Only those this share as probable as the best."
)
@click.option(
    "--typical-p", type=float, default=1.0, show_default=True, help="Only the most typical that together have this."
)
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Above 1: tokens that are there less often.",
)
@click.option(
    "--presence-penalty", type=float, default=0.0, show_default=True, help="Taken off what was written already."
)
@click.option(
    "--frequency-penalty", type=float, default=0.0, show_default=True, help="Taken off for each time it was written."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of chance; the same seed gives the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="A text at which to end.")
@click.option(
    "--num-beams",
    type=Whole(1),
    default=1,
    show_default=True,
    help="Continuations to follow at a time; above 1 the most probable one is written, whole.",
)
@click.option(
    "--batch-size",
    type=Whole(1),
    help="Of several prompts so many in one run; by default 8, or 1 where the model cannot do that.",
)
@click.option("--capacity", type=int, default=4096, show_default=True, help="Tokens that the cache has room for.")
@click.option(
    "--adapter",
    type=click.Path(path_type=Path),
    help="The folder of a LoRA adapter of peft, to add to the weights of a .gguf file or of a folder of safetensors.",
)
@options.draft
@options.draft_tokens
@options.threads
@options.target_options
def command(
    model: str, prompts: tuple[str, ...], tokens: tuple[str, ...], chat: bool, max_new_tokens: int, greedy: bool,
    stop: tuple[str, ...], num_beams: int, batch_size: int | None, capacity: int, adapter: Path | None,
    draft: str | None, draft_tokens: int, threads: int | None, given: tuple[str, ...], **sampling: Any,
) -> None:  # fmt: skip
    """Continue a prompt with the language model in the folder DIR; text comes as it is written.

    DIR has model.onnx and tokenizer.json, as the exporters of onnxruntime-genai, optimum and transformers.js write
    them, or config.json and model.safetensors, as transformers does; or it is a .gguf file.
    """
    from occ.generation.language_model import LanguageModel, Prompt

    if bool(prompts) == bool(tokens):
        raise click.UsageError("give either --prompt TEXT or --tokens ID,ID,...")
    if chat and not prompts:
        raise click.UsageError("--chat takes a --prompt")
    asked: list[Prompt] = [*prompts, *map(_ids, tokens)]
    given_options = pairs(given, "-C", keys=True)
    guesses: dict[str, Any] = {"draft": draft, "draft_tokens": draft_tokens}
    lm = LanguageModel(Path(model), threads, capacity, adapter=adapter, options=given_options, **guesses)
    if chat:
        asked = [lm.chat([{"role": "user", "content": p}]) for p in prompts]
    start, made = time.perf_counter(), list[int]()
    how: dict[str, Any] = {"stop": stop, "texts": bool(prompts), "watch": made.append}
    if num_beams == 1:
        how |= {"do_sample": not greedy, **sampling}
    if len(asked) > 1:
        found = lm.generate(asked, max_new_tokens, num_beams=num_beams, batch_size=batch_size, **how)
        for prompt, text in zip(prompts or asked, found, strict=True):
            click.echo(json.dumps({"prompt": prompt, "text" if prompts else "tokens": text}, ensure_ascii=False))
    else:
        one = partial(lm.generate, num_beams=num_beams) if num_beams > 1 else lm.stream
        _write(one(asked[0], max_new_tokens, **how))
    seconds = time.perf_counter() - start
    say(f"{len(made)} tokens in {seconds:.2f} s on {lm.session.threads} thread{'s' if lm.session.threads > 1 else ''}")


def _write(pieces: Iterable[str | int]) -> None:
    """Show a text as it is generated: pieces of text, or tokens followed by a space."""
    for piece in pieces:
        click.echo(piece if isinstance(piece, str) else f"{piece} ", nl=False)
    click.echo()


def _ids(text: str) -> list[int]:
    try:
        return [int(t) for t in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--tokens takes numbers with commas between, not {text!r}") from None
