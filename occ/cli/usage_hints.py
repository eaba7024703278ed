"""What to say of options and arguments that other programs have and occ spells otherwise."""

from __future__ import annotations

import click

_BATCH = "a batch is a dim: --dim NAME=4; `occ inspect MODEL` names the dims"
_ROUNDS = "--rounds sets how often each runtime is timed"
_ROWS = "--batch sets how many rows of requests are combined"
_FORM = "--calibrate DATA quantises everything to 8 bits, --weights {int8,int4} only weights"
_CODES = "`occ quantize` writes a model in 8 or 4 bits"
_HALF = "`-C precision=bf16` rounds operands if the target supports it; `occ targets TARGET` lists its options"
_DEVICE = "-t TARGET sets the target; `occ targets` lists them"
# By the option that was typed: the parameter that a command must have for the remedy, or none, and the remedy.
_OPTIONS = {
    **dict.fromkeys(("--batch", "--batch-size", "--batch_size", "--bs"), ("dims", _BATCH)),
    **dict.fromkeys(("--iterations", "--iters", "--warmup", "--repeat", "--runs", "--duration"), ("rounds", _ROUNDS)),
    **dict.fromkeys(("--int8", "--int4", "--quantize", "--quantise"), ("", _CODES)),
    **dict.fromkeys(("--fp16", "--bf16", "--half", "--precision"), ("given", _HALF)),
    **dict.fromkeys(("--device", "--provider", "--ep", "--backend"), ("target", _DEVICE)),
}
# By a command and the option that was typed.
_OF_COMMANDS = {
    **{("warm", name): "kernels are built for `-t cpu`" for name in ("-t", "--target")},
    **{("serve", name): _ROWS for name in ("--batch-size", "--batch_size", "--bs")},
    **{("quantize", name): _FORM for name in ("--int8", "--int4")},
}
# By the command: where an argument belongs that is one too many.
_ARGUMENTS = {
    "run": "pass arrays with --input [NAME=]FILE",
    "bench": "pass arrays with --inputs FILE.npz, and other models in separate runs",
    "build": "set the output path with -o; `occ warm` compiles several models",
    "quantize": "set the output path with -o, calibration data with --calibrate",
    "report": "set the output path with -o",
    "dump": "set the output path with -o",
    "extract": "set the output path with -o",
    "reduce": "set the output path with -o",
    "generate": "pass texts with --prompt",
    "embed": "pass texts with --text",
    "inspect": "only one MODEL is allowed",
    "check": "only one MODEL is allowed",
}


def with_hint(e: click.ClickException) -> click.ClickException:
    """A usage error that says what to do instead, not which names look alike; others as they are."""
    if not isinstance(e, click.UsageError) or not (hint := _hint(e)):
        return e
    return click.UsageError(f"{e.message.removesuffix('.')}; {hint}", e.ctx)


def _hint(e: click.UsageError) -> str:
    if e.ctx is None:
        return ""
    if isinstance(e, click.NoSuchOption):
        if own := _OF_COMMANDS.get((e.ctx.command.name or "", e.option_name)):
            return own
        wanted, remedy = _OPTIONS.get(e.option_name, ("", ""))
        return remedy if not wanted or any(p.name == wanted for p in e.ctx.command.params) else ""
    if e.message.startswith("Got unexpected extra argument"):
        return _ARGUMENTS.get(e.ctx.command.name or "", "")
    return ""
