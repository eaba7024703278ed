"""`python -m tools.serving URL TEST`: puts a running server of OpenAI's protocol under load, and says what it bore.

Start it with `occ serve MODEL --port 8000`; `schemas` needs the package jsonschema. `clients` runs against other servers too, such
as `python -m llama_cpp.server --model FILE.gguf`.
"""

from __future__ import annotations

import sys

import click

from tools.serving import load
from tools.serving.client import Target


@click.group()
@click.argument("url")
@click.option("--key", default="", help="What the server asks for; before the URL.")
@click.pass_context
def main(ctx: click.Context, url: str, key: str) -> None:
    """Put the server at URL under load."""
    ctx.obj = Target.at(url, key)


@main.command()
@click.option("--count", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--clients", default=4, show_default=True)
@click.option("--tokens", default=600, show_default=True, help="Of an answer, at most.")
@click.pass_obj
def schemas(target: Target, count: int, seed: int, clients: int, tokens: int) -> None:
    """Ask for JSON of random schemas, and check each answer."""
    wrong = list(load.schemas(target, count, seed, clients, tokens))
    for schema, answer in wrong:
        click.echo(f"{schema}\n  {answer[:400]}")
    click.echo(f"{count - len(wrong)} of {count} answers fit their schemas")
    sys.exit(bool(wrong))


@main.command()
@click.option("--count", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.pass_obj
def malformed(target: Target, count: int, seed: int) -> None:
    """Send invalid bodies; none may cause a 5xx."""
    seen, wrong = load.malformed(target, count, seed)
    for body, answer in wrong:
        click.echo(f"{body[:300]!r}\n  {answer[:400]}")
    click.echo(", ".join(f"{n} times {status}" for status, n in sorted(seen.items())))
    sys.exit(bool(wrong))


@main.command("hang-ups")
@click.option("--count", default=50, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.pass_obj
def hang_ups(target: Target, count: int, seed: int) -> None:
    """Hang up at random moments, and count the steps until the place is free."""
    steps = load.hang_ups(target, count, seed)
    click.echo(f"{count} places were free after {max(steps):g} steps at most, {sum(steps) / count:.2f} on average")


@main.command()
@click.option("--pid", type=int, required=True, help="The process of the server.")
@click.option("--count", default=10_000, show_default=True)
@click.option("--clients", default=8, show_default=True)
@click.pass_obj
def memory(target: Target, pid: int, count: int, clients: int) -> None:
    """Send many short requests, and watch the memory of the server."""
    load.memory(target, pid, count, clients, lambda k, mib: click.echo(f"{k:6} requests: {mib:.1f} MiB"))


@main.command()
@click.option("--count", default=64, show_default=True)
@click.option("--at-once", default=16, show_default=True)
@click.option("--tokens", default=32, show_default=True)
@click.pass_obj
def clients(target: Target, count: int, at_once: int, tokens: int) -> None:
    """Time clients that ask at once."""
    for name, value in load.clients(target, count, at_once, tokens).items():
        click.echo(f"{name:20} {value:.3f}")


if __name__ == "__main__":
    main()
