"""The `atc` command that compiles an `.air` file to an `.om`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from occ.compiler.codegen_cann.atc_options import ATC_OPTIONS, contents
from occ.compiler.codegen_cann.options import AscendOptions


def command(name: str, options: AscendOptions, gears: Sequence[str] = ()) -> list[str]:
    """The arguments of `atc` for the part `name`, to be run in the folder of its `.air` file.

    Args:
        name: of the part.
        options: of the target.
        gears: arguments for symbolic dims.
    """
    made = [
        "atc", "--mode=0", "--framework=1", f"--model={name}.air", f"--output={name}",
        f"--soc_version={options.soc_version}", options.precision_argument, *gears,
    ]  # fmt: skip
    if options.op_select_impl_mode:
        made.append(f"--op_select_implmode={options.op_select_impl_mode}")
    if options.optypelist_for_implmode:
        made.append(f"--optypelist_for_implmode={options.optypelist_for_implmode}")
    return [*made, *(f"--{flag}={beside}" for flag, beside, _ in _files(options)), *_plain(options)]


def _plain(options: AscendOptions) -> list[str]:
    return [f"--{name}={value}" for name, value in options.atc if ATC_OPTIONS[name].kind != "file"]


def _files(options: AscendOptions) -> list[tuple[str, str, str]]:
    """Options of atc that name a configuration: the option, the file's name next to the graph, and its path."""
    given = [("fusion_switch_file", options.fusion_switch_file)] if options.fusion_switch_file else []
    given += [(name, path) for name, path in options.atc if ATC_OPTIONS[name].kind == "file"]
    return [(name, f"{name}{PurePath(path).suffix or '.cfg'}", path) for name, path in given]


def configurations(options: AscendOptions) -> dict[str, bytes]:
    """Contents of the configuration files that the `atc` command names, by file name.

    Raises:
        CompileError: OCC0603 one can no longer be read.
    """
    return {beside: contents(name, path) for name, beside, path in _files(options)}


def text(arguments: Sequence[str]) -> str:
    """A command in shell syntax; whatever a name contains, it stays one argument."""
    return shlex.join(arguments)


def remarks(options: AscendOptions) -> list[str]:
    """Warnings about the requested precision."""
    mode, soc = options.precision, options.soc_version
    match mode:
        case "fp16":
            return [
                f"FLOAT is computed in half precision on {soc} (precision_mode_v2=fp16); results differ by about 1e-3"
            ]
        case "origin" if options.fp16_only:
            return [
                f"the matrix unit of {soc} has no fp32: atc finds no kernel for convolutions and products of FLOAT with"
                " `origin`; build with `-C precision_mode_v2=cube_fp16in_fp32out`, the default, or fp16"
            ]
        case "origin":
            return [f"FLOAT stays FLOAT on {soc} (precision_mode_v2=origin); atc on its own would silently use fp16"]
        case "cube_fp16in_fp32out":
            return [
                f"the matrix unit of {soc} takes half-precision operands (precision_mode_v2=cube_fp16in_fp32out);"
                " results differ by about 1e-3 on the simulator"
            ]
        case "allow_fp32_to_fp16":
            return [f"the matrix unit of {soc} computes in half precision, and so do operators without an fp32 kernel"]
        case _:
            return [f"convolutions and matrix products are computed in 16 bits on {soc} ({mode})"]
