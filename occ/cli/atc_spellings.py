"""Options of `atc` on the command line of `occ build`: translated, or rejected with occ's alternative."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise

import click

from occ.cli.console import say

_NAME = re.compile(r"--?([a-z][a-z0-9_-]+)")  # atc accepts one dash for two, and `-` for `_`
_OURS = ("target", "json", "help")  # of `occ build` too
_GEARS = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")


class AtcSpellings(click.Command):
    """A command that accepts the options of `atc`, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, with the options of `atc` translated to ours.

        Raises:
            click.UsageError: such an option has no equivalent; the message says what to do instead.
        """
        ours = translated(args)
        if ours != args and not ctx.resilient_parsing:
            say(f"read as  occ {self.name} {shlex.join(ours)}")
        return super().parse_args(ctx, ours)


def translated(args: Sequence[str]) -> list[str]:
    """Arguments with the options of `atc` translated; others are unchanged.

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
        spelled, sign, value = arg.partition("=")
        name = _option_of_atc(spelled)
        if not name:
            _check_known(spelled)
            made.append(arg)
            continue
        if not sign:
            if not left:
                raise click.UsageError(f"--{name} takes a value")
            value = left.pop(0)
        made += _ours(name, value, args)
    return made


def _option_of_atc(spelled: str) -> str:
    """The option of `atc` that an argument names; empty if it is none, or `occ build` has one of that name."""
    from occ.compiler.codegen_cann.atc_options import ATC_OPTIONS

    found = _NAME.fullmatch(spelled)
    name = found[1].replace("-", "_") if found else ""
    return name if name in ATC_OPTIONS and name not in _OURS else ""


def _check_known(spelled: str) -> None:
    """Reject an option in atc's spelling, with `_`, that occ does not have.

    Raises:
        click.UsageError: always, for such an option.
    """
    from occ.compiler.codegen_cann.atc_options import ATC_OPTIONS
    from occ.compiler.diagnostics import closest

    if spelled.startswith("--") and "_" in spelled:
        hint = closest(spelled.removeprefix("--"), ATC_OPTIONS) or "`atc --help` and `occ build --help` list them"
        raise click.UsageError(f"neither occ nor atc has an option {spelled!r}; {hint}")


def _ours(name: str, value: str, args: Sequence[str]) -> list[str]:
    from occ.compiler.codegen_cann.atc_options import ATC_OPTIONS

    match name:
        case "soc_version":
            return [*_target(value, args), "-C", f"soc_version={value}"]
        case "input_shape":
            return _sizes(value, args)
        case "model":
            return [value]
        case "output":
            return ["-o", value if value.endswith((".occ", ".om", ".air")) else f"{value}{_suffix(args)}"]
        case _:
            pass
    option = ATC_OPTIONS[name]
    if option.own:
        return ["-C", f"{option.own}={value}"]
    if option.is_passed:
        return ["-C", f"atc.{name}={value}"]
    if option.allows(value):
        return []
    shown = f"--{name}={value} of atc" if option.holds else f"--{name} is an option of atc"
    raise click.UsageError(f"{shown}: {option.instead}")


def _target(soc: str, args: Sequence[str]) -> list[str]:
    """The target of a chip, if no target was given.

    Raises:
        click.UsageError: no target has such a chip.
    """
    if any(a.startswith(("-t", "--target=")) or a == "--target" for a in args):
        return []
    from occ.compiler.codegen_cann.options import SOCS, chip_hint

    found = [target for target, chips in SOCS.items() if soc in chips]
    if not found:
        raise click.UsageError(f"unknown chip {soc!r}; {chip_hint(soc)}")
    return ["-t", found[0]]


def _check_order(args: Sequence[str]) -> None:
    """Reject sizes that depend on the order of `--input_shape` if the model has its inputs in another one.

    Raises:
        click.UsageError: the order differs.
    """
    given = _given(args)
    if not {"input_shape", "dynamic_dims"} <= given.keys() or "=" in given["dynamic_dims"]:
        return
    open_ones = [
        item.strip().rpartition(":")[0] for item in given["input_shape"].split(";") if "-1" in item.rpartition(":")[2]
    ]
    declared = [n for n in _inputs(_path(args)) if n in open_ones]
    if declared and declared != [n for n in open_ones if n in declared]:
        raise click.UsageError(
            f"--dynamic_dims of atc follows the order of --input_shape, {', '.join(open_ones)}; the model has "
            f"{', '.join(declared)}: list the inputs in the order of the model, or set sizes by name, -C "
            "dynamic_dims=NAME=1,OTHER=128;NAME=8,OTHER=128"
        )


def _option(arg: str, after: str) -> tuple[str, str]:
    spelled, sign, value = arg.partition("=")
    return _option_of_atc(spelled), value if sign else after


def _given(args: Sequence[str]) -> dict[str, str]:
    """The options of `atc` among arguments."""
    typed = [*args, ""]
    return {name: value for a, after in pairwise(typed) for name, value in [_option(a, after)] if name}


def _path(args: Sequence[str]) -> str:
    """The model that arguments name, as far as possible."""
    return _given(args).get("model") or next((a for a in args if a.endswith(".onnx") and not a.startswith("-")), "")


def _inputs(path: str) -> dict[str, list[int | str]]:
    """The inputs of a model in order, with their extents, by occ's names.

    None if it cannot be read.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from occ.compiler.frontend.signature import label_of

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (OSError, DecodeError, ValueError):
        return {}
    weights = {i.name for i in graph.initializer}
    return {
        i.name: [
            d.dim_value if d.HasField("dim_value") else label_of(i.name, k, d)
            for k, d in enumerate(i.type.tensor_type.shape.dim)
        ]
        for i in graph.input
        if i.name not in weights
    }


def _sizes(value: str, args: Sequence[str]) -> list[str]:
    """`--input_shape` translated: extents, and ranges of the dims that have them."""
    given = [_item(item) for item in value.split(";") if item.strip()]
    typed = _given(args)
    has_gears = any(key in typed for key in _GEARS) or any(a.startswith((*_GEARS, "dynamic_ranges=")) for a in args)
    ranges = any("~" in e for _, extents in given for e in extents)
    dynamic = "soc_version" in typed and any(e == "-1" for _, extents in given for e in extents)
    if not ranges and (has_gears or not dynamic):
        return [a for name, extents in given for a in ("--shape", f"{name}={','.join(extents)}")]
    if has_gears:
        raise click.UsageError(
            "--input_shape of atc has a range, which excludes --dynamic_batch_size, --dynamic_image_size and "
            "--dynamic_dims"
        )
    inputs = _inputs(_path(args))
    found: dict[str, str] = {}
    shapes: list[str] = []
    for name, extents in given:
        found |= _ranges(name, extents, inputs.get(name, []), found)
        fixed = ["-1" if e == "-1" or "~" in e else e for e in extents]
        shapes += ["--shape", f"{name}={','.join(fixed)}"]
    return [*shapes, *(("-C", "dynamic_ranges=" + ",".join(f"{n}={r}" for n, r in found.items())) if found else ())]


def _ranges(
    name: str, extents: Sequence[str], declared: Sequence[int | str], known: Mapping[str, str]
) -> dict[str, str]:
    """The ranges of the dims of an input, by the names of these.

    Raises:
        click.UsageError: an axis is a constant of the model; or a dim has another range elsewhere.
    """
    made: dict[str, str] = {}
    for k, (extent, dim) in enumerate(zip(extents, declared, strict=False)):
        if extent != "-1" and "~" not in extent:
            continue
        least, _, most = extent.partition("~")
        if isinstance(dim, int):
            if "~" in extent:
                raise click.UsageError(
                    f"--input_shape of atc has the range {extent} for axis {k} of {name!r}, which is the constant "
                    f"{dim} in the model: use {dim}, or export the model with this axis dynamic"
                )
            continue
        if not (least.lstrip("-").isdigit() and most.lstrip("-").isdigit()) and extent != "-1":
            raise click.UsageError(
                f"--input_shape of atc takes ranges such as 1~8, or 1~-1 without an end, not {extent!r}"
            )
        text = "?" if extent == "-1" or most == "-1" else f"{least}..{most}"
        if least == most:
            raise click.UsageError(f"--input_shape of atc has the range {extent}, which is one size: use {least}")
        if {**known, **made}.get(dim, text) != text:
            raise click.UsageError(
                f"--input_shape of atc sets two ranges for the dim `{dim}`: the model uses it in several places, so "
                "set one"
            )
        made[dim] = text
    return made


def _item(item: str) -> tuple[str, list[str]]:
    name, sign, extents = item.strip().rpartition(":")
    if not sign or not name:
        raise click.UsageError(f"--input_shape takes NAME:1,3,224,224;NAME:..., not {item!r}")
    return name, [e.strip() for e in extents.split(",")] if extents.strip() else []


def _suffix(args: Sequence[str]) -> str:
    """The file suffix that `atc` appends, by --emit."""
    emits = dict(pairwise(args)).get("--emit")
    emits = emits or next((a.removeprefix("--emit=") for a in args if a.startswith("--emit=")), "artifact")
    return {"om": ".om", "air": ".air"}.get(emits, ".occ")
