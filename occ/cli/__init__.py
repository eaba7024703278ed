"""The command line. One file per command; each is imported only when it runs."""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module

import click

COMMANDS = {
    "build": "compile a model to an artifact",
    "atc": "compile a model with the options of atc, the compiler of the CANN toolkit",
    "run": "run a model or an artifact",
    "dump": "print a model at a stage of its compilation",
    "inspect": "describe a model or an artifact",
    "check": "report whether a target supports a model, and which nodes it does not support",
    "diff": "compare results with another runtime",
    "extract": "write a part of a model as a separate model",
    "quantize": "write a model with weights, or weights and activations, in 8 or 4 bits",
    "generate": "write text with a language model",
    "transcribe": "transcribe speech to text",
    "embed": "embed texts as vectors, or score texts",
    "report": "write an HTML report of a model's compilation",
    "bench": "benchmark a model against other runtimes",
    "serve": "serve language models over OpenAI's API, or other models over KServe's",
    "opt": "run passes on .occ text",
    "rules": "list the rules, and explain why they match or do not",
    "bisect": "find the pass and the op that cause wrong results",
    "reduce": "shrink a model while it keeps failing",
    "check-rules": "prove rewrite rules on random operands",
    "targets": "list the targets",
    "ops": "list the operators",
    "explain": "explain a diagnostic code",
    "doctor": "report on this machine's toolchain",
    "config": "print the flags for C programs that run artifacts without Python",
    "warm": "compile the kernels of many models into the build cache at once",
    "cache": "show or clear the build cache",
    "completion": "print the script that lets a shell complete commands",
}

_HIDDEN = ("onnxifi",)  # which a library starts
# New objects between searches for cycles. A model has millions that stay: 50,000 costs builds a tenth.
_YOUNG = 1_000_000
VARIABLE = "_OCC_COMPLETE"  # of the environment, by which a shell asks for completions


class _Lazy(click.Group):
    """A group whose commands are modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in {*COMMANDS, *_HIDDEN}:
            return None
        command = import_module(f"occ.cli.{cmd_name.replace('-', '_')}").command
        if ctx.resilient_parsing:  # shell completion
            from occ.cli.completers import with_completion

            return with_completion(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        if args[0] not in {*COMMANDS, *_HIDDEN} and not args[0].startswith("-") and not ctx.resilient_parsing:
            from occ.compiler.diagnostics import closest

            hint = closest(args[0], COMMANDS) or "`occ --help` lists them."
            raise click.UsageError(f"no such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from occ.runtime.version import occ_version

        click.echo(f"occ {occ_version()}")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
def cli() -> None:
    """Occ compiles ONNX models to native code, and shows its work at every stage."""


def _complete() -> None:
    """Let click answer completion requests like `occ.cli.completers`."""
    from click.shell_completion import add_completion_class

    from occ.cli.completers import SHELLS

    for kind in SHELLS.values():
        add_completion_class(kind)


def main() -> None:
    """Entry point of the `occ` command. Exit codes: docs/cli.md."""
    from occ.cli.console import TERMINATED, Terminated, guarded, terminate

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)
    if VARIABLE in os.environ:
        _complete()
    gc.set_threshold(_YOUNG)
    try:
        code = guarded(lambda: cli.main(standalone_mode=False))
    except Terminated:
        code = TERMINATED
    gc.freeze()  # the interpreter searches for cycles as it ends, which would be a fifth of a small build
    sys.exit(code)
