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
    help="The text to continue. Several are continued in one batch, and written as lines of JSON at the end.",
)
@click.option(
    "--tokens", multiple=True, metavar="ID,ID,...", help="Tokens to continue, for a folder without a tokenizer."
)
@click.option("--chat", is_flag=True, help="Treat the prompt as a user's message in the model's chat template.")
@click.option("--max-new-tokens", type=Whole(0), default=64, show_default=True, help="Maximum number of new tokens.")
@click.option("--greedy", is_flag=True, help="Always choose the most probable token.")
@click.option(
    "--temperature",
    type=float,
    default=0.8,
    show_default=True,
    help="Temperature: below 1 favours probable tokens; 0 is --greedy.",
)
@click.option(
    "--top-k",
    type=int,
    default=50,
    show_default=True,
    help="Sample from this many of the most probable tokens; 0 for all.",
)
@click.option(
    "--top-p",
    type=float,
    default=0.95,
    show_default=True,
    help="Sample from the most probable tokens with this total probability.",
)
@click.option(
    "--min-p",
    type=float,
    default=0.0,
    show_default=True,
    help="Sample from tokens at least this fraction as probable as the best.",
)
@click.option(
    "--typical-p",
    type=float,
    default=1.0,
    show_default=True,
    help="Sample from the most typical tokens with this total probability.",
)
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Above 1: repeat tokens less often.",
)
@click.option(
    "--presence-penalty", type=float, default=0.0, show_default=True, help="Penalty for tokens that have occurred."
)
@click.option(
    "--frequency-penalty", type=float, default=0.0, show_default=True, help="Penalty for each occurrence of a token."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed; the same seed writes the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="A text at which to stop.")
@click.option(
    "--num-beams",
    type=Whole(1),
    default=1,
    show_default=True,
    help="Number of beams; above 1 the most probable text is written at the end.",
)
@click.option(
    "--batch-size",
    type=Whole(1),
    help="Prompts in a batch; by default 8, or 1 if the model does not support batches.",
)
@click.option("--capacity", type=int, default=4096, show_default=True, help="Capacity of the cache, in tokens.")
@click.option(
    "--adapter",
    type=click.Path(path_type=Path),
    help="Folder of a peft LoRA adapter, to add to the weights of a .gguf file or a folder of safetensors.",
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
    from occ.generation.language_model import Prompt
    from occ.generation.model_kinds import LanguageModel

    if bool(prompts) == bool(tokens):
        raise click.UsageError("use either --prompt TEXT or --tokens ID,ID,...")
    if chat and not prompts:
        raise click.UsageError("--chat needs a --prompt")
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
        raise click.UsageError(f"--tokens takes numbers separated by commas, not {text!r}") from None
