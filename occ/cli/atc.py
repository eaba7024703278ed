"""The options of `atc` on the command line of `occ build`: read as ours where they mean the same, else answered with ours."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

import click

from occ.cli.console import say

# of `atc` -> the `-C` option that it is
_SAME = {
    "precision_mode": "precision_mode", "precision_mode_v2": "precision_mode_v2", "keep_dtype": "keep_dtype",
    "dynamic_batch_size": "dynamic_batch_size", "dynamic_image_size": "dynamic_image_size", "dynamic_dims": "dynamic_dims",
    "fusion_switch_file": "fusion_switch_file", "op_select_implmode": "op_select_impl_mode",
    "optypelist_for_implmode": "optypelist_for_implmode", "insert_op_conf": "aipp",
}  # fmt: skip
# of `atc` -> the values that say what holds anyway, and what to do instead of others
_HOLDS = {
    "framework": (("5",), "occ reads ONNX models, which are framework 5: export the model to ONNX"),
    "mode": (("0",), "occ build makes a model, which is mode 0; `occ check` and `occ inspect` do what other modes do"),
    "input_format": (("NCHW", "ND", "NCDHW"), "inputs have the layout that the ONNX model declares: add a Transpose to the model"),
}  # fmt: skip
# of `atc` -> what to do instead
_ANSWERS = {
    "out_nodes": "atc ends the model there: `occ extract MODEL --to NAME -o part.onnx` does so, and part.onnx is what to build; "
    "`--outputs NAME` adds outputs to the declared ones",
    "output_type": "outputs have the types that the model declares: end the model with a Cast to another one",
    "input_shape_range": "`-C dynamic_ranges=DIM=1..8` gives bounds to the dims that `occ inspect MODEL` names",
}
_KNOWN = {*_SAME, *_HOLDS, *_ANSWERS, "soc_version", "input_shape", "model", "output"}


class AtcSpellings(click.Command):
    """A command that takes the options of `atc`, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was typed, with the options of `atc` read as ours.

        Raises:
            click.UsageError: such an option has no equal; the message says what to do instead.
        """
        ours = translated(args)
        if ours != args and not ctx.resilient_parsing:
            say(f"read as  occ {self.name} {shlex.join(ours)}")
        return super().parse_args(ctx, ours)


def translated(args: Sequence[str]) -> list[str]:
    """Arguments with the options of `atc` in our words; others stay as they are.

    Raises:
        click.UsageError: as `AtcSpellings.parse_args`; or an option of `atc` has no value.
    """
    made: list[str] = []
    left = list(args)
    _check_order(args)
    while left:
        arg = left.pop(0)
        if arg == "--":
            return [*made, arg, *left]
        name, sign, value = arg.removeprefix("--").partition("=")
        if not arg.startswith("--") or name not in _KNOWN:
            made.append(arg)
            continue
        if not sign:
            if not left:
                raise click.UsageError(f"--{name} takes a value")
            value = left.pop(0)
        made += _ours(name, value, args)
    return made


def _ours(name: str, value: str, args: Sequence[str]) -> list[str]:
    if name in _ANSWERS:
        raise click.UsageError(f"--{name} is an option of atc: {_ANSWERS[name]}")
    if name in _HOLDS:
        holds, answer = _HOLDS[name]
        if value not in holds:
            raise click.UsageError(f"--{name}={value} of atc: {answer}")
        return []
    match name:
        case "soc_version":
            return [*_target(value, args), "-C", f"soc_version={value}"]
        case "input_shape":
            return [a for item in value.split(";") if item.strip() for a in ("--shape", _shape(item))]
        case "model":
            return [value]
        case "output":
            return ["-o", value if value.endswith((".occ", ".om", ".air")) else f"{value}{_suffix(args)}"]
        case _:
            return ["-C", f"{_SAME[name]}={value}"]


def _target(soc: str, args: Sequence[str]) -> list[str]:
    """The target of a chip, where none was named.

    Raises:
        click.UsageError: no target has such a chip.
    """
    if any(a.startswith(("-t", "--target=")) or a == "--target" for a in args):
        return []
    from occ.compiler.codegen_cann.options import SOCS
    from occ.compiler.diagnostics import closest

    found = [target for target, chips in SOCS.items() if soc in chips]
    if not found:
        chips = [c for each in SOCS.values() for c in each]
        raise click.UsageError(f"unknown chip {soc!r}; {closest(soc, chips) or 'known are ' + ', '.join(chips)}")
    return ["-t", found[0]]


def _check_order(args: Sequence[str]) -> None:
    """Refuse sizes that count in the order of `--input_shape` where the model has its inputs in another one.

    Raises:
        click.UsageError: as said.
    """
    typed = [*args, ""]
    given = {
        n: v
        for a, after in pairwise(typed)
        for n, v in [_option(a, after)]
        if n in ("input_shape", "dynamic_dims", "model")
    }
    if not {"input_shape", "dynamic_dims"} <= given.keys() or "=" in given["dynamic_dims"]:
        return
    open_ones = [
        item.strip().rpartition(":")[0] for item in given["input_shape"].split(";") if "-1" in item.rpartition(":")[2]
    ]
    path = given.get("model") or next((a for a in args if a.endswith(".onnx") and not a.startswith("-")), "")
    declared = [n for n in _inputs(path) if n in open_ones]
    if declared and declared != [n for n in open_ones if n in declared]:
        raise click.UsageError(
            f"--dynamic_dims of atc counts in the order of --input_shape, {', '.join(open_ones)}; the model has {', '.join(declared)}: "
            "give the inputs in the order of the model, or sizes by name, -C dynamic_dims=NAME=1,OTHER=128;NAME=8,OTHER=128"
        )


def _option(arg: str, after: str) -> tuple[str, str]:
    name, sign, value = arg.removeprefix("--").partition("=")
    return (name, value if sign else after) if arg.startswith("--") else ("", "")


def _inputs(path: str) -> list[str]:
    """The inputs of a model in order; none where it cannot be read, which is told later."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (OSError, DecodeError, ValueError):
        return []
    weights = {i.name for i in graph.initializer}
    return [i.name for i in graph.input if i.name not in weights]


def _shape(item: str) -> str:
    name, sign, extents = item.strip().rpartition(":")
    if not sign or not name:
        raise click.UsageError(f"--input_shape takes NAME:1,3,224,224;NAME:..., not {item!r}")
    if "~" in extents:
        raise click.UsageError(f"--input_shape={item} of atc has a range: {_ANSWERS['input_shape_range']}")
    return f"{name}={extents}"


def _suffix(args: Sequence[str]) -> str:
    """What `atc` leaves out of the path: the end of what --emit asks for."""
    emits = dict(pairwise(args)).get("--emit")
    emits = emits or next((a.removeprefix("--emit=") for a in args if a.startswith("--emit=")), "artifact")
    return {"om": ".om", "air": ".air"}.get(emits, ".occ")
