"""The Ascend chips, and the `-C` options of their targets: those of onnxruntime's CANN provider, and occ's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from occ.compiler.diagnostics import CompileError, error
from occ.compiler.target.option import Option

# target -> exact chips (`aclrtGetSocName`), the default first. `Ascend910B` without a digit is a first-generation 910.
SOCS: dict[str, tuple[str, ...]] = {
    "ascend310": ("Ascend310",),
    "ascend310p": ("Ascend310P3", "Ascend310P1", "Ascend310P5", "Ascend310P7"),
    "ascend910": ("Ascend910A", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA", "Ascend910B"),
    "ascend910b": (
        "Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1",
    ),
}  # fmt: skip
# precision_mode -> the precision_mode_v2 that it is called today; one has no such name
PRECISION_MODES: dict[str, str] = {
    "force_fp16": "fp16", "force_fp32": "cube_fp16in_fp32out", "cube_fp16in_fp32out": "cube_fp16in_fp32out",
    "allow_fp32_to_fp16": "allow_fp32_to_fp16", "must_keep_origin_dtype": "origin", "allow_mix_precision": "mixed_float16",
    "allow_mix_precision_fp16": "mixed_float16", "allow_mix_precision_bf16": "mixed_bfloat16",
}  # fmt: skip
PRECISION_MODES_V2 = ("origin", "fp16", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16")
BOOLS = ("true", "false", "on", "off", "1", "0")


def options(target: str) -> dict[str, Option]:
    """The options of a target. Names, defaults and meanings are the provider's, where it has the option."""
    return {
        "soc_version": Option(SOCS[target][0], SOCS[target], "the exact chip, as `aclrtGetSocName` spells it"),
        "device_id": Option(0, doc="the device that runs the model"),
        "npu_mem_limit": Option(0, doc="bytes of device memory that the model may take, each part of it at once; 0 for no limit"),
        "arena_extend_strategy": Option(
            "kNextPowerOfTwo", ("kNextPowerOfTwo", "kSameAsRequested"), "how the memory of a session grows"
        ),
        "enable_cann_graph": Option(True, BOOLS, "compile whole parts; `false` runs operator by operator"),
        "dump_graphs": Option(False, BOOLS, "put the GE graph of each part into the artifact as text, ONNX and C++"),
        "precision_mode": Option("", tuple(PRECISION_MODES), "older spelling of `precision_mode_v2`"),
        "precision_mode_v2": Option(
            "", PRECISION_MODES_V2, "what FLOAT is computed in; `origin`, which occ takes by default, as the model says"
        ),
        "keep_dtype": Option(
            "auto", doc="nodes that stay FLOAT in the other modes: `auto` for what leads to a logarithm, `off`, or a file as `atc --keep_dtype` takes it"
        ),
        "op_select_impl_mode": Option("", ("high_performance", "high_precision"), "which kernels operators use"),
        "optypelist_for_implmode": Option("", doc="operators that `op_select_impl_mode` is for, separated by commas"),
        "dynamic_batch_size": Option("", doc="sizes of a symbolic batch, such as 1,2,4: one compiled model for all of them"),
        "dynamic_image_size": Option("", doc="heights and widths, such as 416,416;832,832"),
        "dynamic_dims": Option("", doc="values of all symbolic dims, in order, such as 1,128;8,128"),
        "fusion_switch_file": Option("", doc="file that turns fusion passes of the toolkit on and off"),
        "cpu_fallback": Option("cpu", ("cpu", "cpu-jit", "off"), "target of what the device cannot take; `off` makes it an error"),
    }  # fmt: skip


# Chips whose matrix unit has no fp32, and which have no bf16 and saturate instead of overflowing.
OLD = ("ascend310", "ascend310p", "ascend910")


def precision_argument(options: Mapping[str, Any]) -> str:
    """The argument of `atc` for the precision that options ask for, in the spelling that has it."""
    mode = precision_of(options)
    return f"--precision_mode_v2={mode}" if mode in PRECISION_MODES_V2 else f"--precision_mode={mode}"


def precision_of(options: Mapping[str, Any]) -> str:
    """The precision that options ask for, by the name of today where it has one: `origin` unless they say otherwise.

    Raises:
        CompileError: OCC0603 both spellings are given.
    """
    if options["precision_mode"] and options["precision_mode_v2"]:
        raise error("OCC0603", "`precision_mode` and `precision_mode_v2` exclude each other", help="give one of them")
    if options["precision_mode"]:
        return PRECISION_MODES[options["precision_mode"]]
    return options["precision_mode_v2"] or "origin"


def check(target: str, options: Mapping[str, Any]) -> None:
    """Refuse what the chip cannot do, and combinations that make no sense.

    Raises:
        CompileError: OCC0603.
    """
    if target in OLD and precision_of(options) == "mixed_bfloat16":
        raise _bad("precision_mode_v2", "mixed_bfloat16", f"`{target}` has no bf16; the others work")
    if options["optypelist_for_implmode"] and not options["op_select_impl_mode"]:
        raise error(
            "OCC0603",
            "`optypelist_for_implmode` names operators for an `op_select_impl_mode`, which is not given",
            help="add `-C op_select_impl_mode=high_precision`",
        )
    given = [k for k in ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims") if options[k]]
    if len(given) > 1:
        raise error("OCC0603", f"`{given[0]}` and `{given[1]}` exclude each other", help="give one of them")


def _bad(key: str, value: str, help_: str) -> CompileError:
    return error("OCC0603", f"option `{key}` cannot be `{value}`", help=help_)


def missing_types(target: str) -> frozenset[str]:
    """Element types, by GE's name, that the chips of a target do not compute with."""
    return frozenset({"STRING", "BF16"}) if target in OLD else frozenset({"STRING"})
