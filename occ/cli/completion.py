"""`occ completion`: prints the completion script of a shell."""

from __future__ import annotations

import click

HOW = {
    "bash": 'eval "$(occ completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(occ completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "occ completion fish > ~/.config/fish/completions/occ.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(HOW.values()))
@click.argument("shell", type=click.Choice(list(HOW)))
def command(shell: str) -> None:
    """Print a script for SHELL that completes commands, options and their values."""
    from occ.cli import VARIABLE, cli
    from occ.cli.completers import SHELLS

    click.echo(SHELLS[shell](cli, {}, "occ", VARIABLE).source())
