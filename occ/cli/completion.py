"""`occ completion`: what a shell needs to complete commands, options and their values."""

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
    from click.shell_completion import get_completion_class

    from occ.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "occ", "_OCC_COMPLETE").source())
