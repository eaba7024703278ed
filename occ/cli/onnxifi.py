"""`occ onnxifi`: the compile server that libonnxifi-occ starts. It is not a command for people."""

from __future__ import annotations

import click


@click.command("onnxifi", hidden=True)
def command() -> None:
    """Answer the requests of libonnxifi-occ, which come over the socket that is the standard input."""
    from occ.compiler.onnxifi.server import main

    main()
