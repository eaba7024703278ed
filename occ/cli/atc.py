"""`occ atc`: accepts a command line of `atc`, the compiler of the CANN toolkit."""

from __future__ import annotations

import click

from occ.cli.console import say


@click.command(
    "atc",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="compile as atc does",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Compile a model with a command line of atc: `occ atc --model=m.onnx --framework=5 --output=m --soc_version=Ascend310P3 ...`.

    What it means for `occ build` is printed. Where the toolkit is, the result is an .om as that of atc, of a model that
    the device takes as a whole; elsewhere it is an artifact, NAME.occ, for the simulator.
    """
    from occ.cli.build import command as build

    given = list(arguments)
    if not any(a == "--emit" or a.startswith("--emit=") for a in given):
        given = [*_emit(given), *given]
    with build.make_context("build", given, parent=ctx.parent) as made:
        build.invoke(made)


def _emit(given: list[str]) -> list[str]:
    """The kind of file that `atc` would write."""
    from occ.compiler.codegen_cann.output.toolkit import find_toolkit
    from occ.compiler.diagnostics import CompileError

    try:
        find_toolkit()
    except CompileError:
        say(
            "no atc in PATH or under ASCEND_HOME_PATH: the artifact is for `occ run --simulate`; `--emit om` "
            "needs the toolkit"
        )
        return []
    whole = [] if any(a.startswith("cpu_fallback=") for a in given) else ["-C", "cpu_fallback=off"]
    return ["--emit", "om", *whole]
