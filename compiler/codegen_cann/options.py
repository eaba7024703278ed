"""Ascend chips, and the `-C` options of their targets.

Some are those of onnxruntime's CANN provider, the others are occ's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from occ.compiler.codegen_cann.atc_options import checked, contents
from occ.compiler.diagnostics import CompileError, closest, error, shorten
from occ.compiler.targets.option import Option, Options, option
from occ.runtime.dataclass import dataclass

# target -> exact chips (`aclrtGetSocName`), the default first. `Ascend910B` without a digit is a first-generation 910.
SOCS: dict[str, tuple[str, ...]] = {
    "ascend310": ("Ascend310",),
    "ascend310b": ("Ascend310B4", "Ascend310B1", "Ascend310B2", "Ascend310B3"),
    "ascend310p": ("Ascend310P3", "Ascend310P1", "Ascend310P5", "Ascend310P7"),
    "ascend910": ("Ascend910A", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA", "Ascend910B"),
    "ascend910b": (
        "Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1",
    ),
    "ascend910_93": (
        "Ascend910_9391", "Ascend910_9362", "Ascend910_9372", "Ascend910_9381", "Ascend910_9382", "Ascend910_9392",
    ),
}  # fmt: skip
# Targets whose chips have no fp32 matrix unit, and those without bf16, whose matrix units are made for half precision.
FP16_ONLY = ("ascend310", "ascend310p", "ascend910")
_HALVES = (*FP16_ONLY, "ascend310b")
# precision_mode -> its current precision_mode_v2 name; one has none
PRECISION_MODES: dict[str, str] = {
    "force_fp16": "fp16", "force_fp32": "cube_fp16in_fp32out", "cube_fp16in_fp32out": "cube_fp16in_fp32out",
    "allow_fp32_to_fp16": "allow_fp32_to_fp16", "must_keep_origin_dtype": "origin",
    "allow_mix_precision": "mixed_float16",
    "allow_mix_precision_fp16": "mixed_float16", "allow_mix_precision_bf16": "mixed_bfloat16",
}  # fmt: skip
PRECISION_MODES_V2 = ("origin", "fp16", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16")
_ATC = "atc."  # prefix of the `-C` keys that `atc` gets unchanged
_NEXT = ("ascend910_95", "ascend950")  # names of chips after the 910_93
GEARS = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")


@dataclass(frozen=True)
class AscendOptions(Options):
    """Options of an Ascend target. Names, defaults and meanings are the provider's, if it has the option.

    Attributes:
        calibrated: nodes that stay FLOAT because sample inputs have shown that they must; not settable by `-C`.
        atc: options that `atc` gets unchanged, set by `-C atc.NAME=VALUE`.
    """

    target: str = "ascend310p"
    calibrated: frozenset[str] = frozenset()
    atc: tuple[tuple[str, str], ...] = ()
    soc_version: str = option("", "the exact chip, as `aclrtGetSocName` spells it")
    device_id: int = option(0, "the device that runs the model")
    npu_mem_limit: int = option(
        0, "bytes of device memory that the model may take, each part of it at once; 0 for no limit"
    )
    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] = option(
        "kNextPowerOfTwo", "how the memory of a session grows"
    )
    enable_cann_graph: bool = option(True, "compile whole parts; `false` runs operator by operator")
    enable_cann_subgraph: bool = option(True, "no effect: a model is always divided between the device and the CPU")
    dump_om_model: bool = option(True, "no effect: `--emit om` puts compiled parts into the artifact")
    input_format: str = option("", "no effect: formats are part of the graph", choices=("NCHW", "NHWC", "ND"))
    dump_graphs: bool = option(False, "put the GE graph of each part into the artifact as text, ONNX and C++")
    precision_mode: str = option("", "older spelling of `precision_mode_v2`", choices=tuple(PRECISION_MODES))
    precision_mode_v2: str = option(
        "",
        "precision of FLOAT: `origin`, as in the model (default on the 910B and 910_93), or "
        "`cube_fp16in_fp32out` (default on the others)",
        choices=PRECISION_MODES_V2,
    )
    keep_dtype: str = option(
        "auto",
        "nodes that stay FLOAT in the other modes: `auto` for nodes that feed a logarithm, `off`, or a file "
        "for `atc --keep_dtype`",
    )
    op_select_impl_mode: str = option("", "which kernels operators use", choices=("high_performance", "high_precision"))
    optypelist_for_implmode: str = option("", "operators that `op_select_impl_mode` is for, separated by commas")
    dynamic_batch_size: str = option("", "sizes of a symbolic batch, such as 1,2,4: one compiled model for all of them")
    dynamic_image_size: str = option("", "heights and widths, such as 416,416;832,832")
    dynamic_dims: str = option(
        "",
        "values of all symbolic dims, in order, such as 1,128;8,128, or by name, such as "
        "past=16,total=17;past=32,total=33",
    )
    dynamic_ranges: str = option(
        "",
        "bounds of the symbolic dims, such as height=32..1280:32,width=?, or relations between them, such as "
        "total=past+1: one graph for all such sizes",
    )
    aipp: str = option(
        "",
        "file of a static AIPP configuration, as for `atc --insert_op_conf`: the device turns pictures into inputs",
    )
    fusion_switch_file: str = option("", "file that turns fusion passes of the toolkit on and off")
    input_fp16_nodes: str = option("", "inputs that are FLOAT16 instead of FLOAT, separated by `;`")
    output_type: str = option(
        "", "the type of the outputs, such as FP16 or UINT8, or of some of them, as NAME:FP16;OTHER:UINT8"
    )
    qdq: Literal["integer", "float"] = option(
        "integer",
        "quantised operators: computed in the matrix unit's 8-bit integers, on the 310P and 910B through AscendQuant "
        "and AscendDequant, which round in half precision; `float` computes everything between DequantizeLinear "
        "and QuantizeLinear in FLOAT, and integer operators exactly",
    )
    offload: Literal["all", "cost"] = option(
        "all", "`cost` leaves parts to the CPU that are estimated to take longer on the device, copies included"
    )
    cpu_fallback: Literal["cpu", "cpu-jit", "off"] = option(
        "cpu", "target for nodes that the device does not support; `off` makes them errors"
    )

    @classmethod
    def of(cls, target: str) -> AscendOptions:
        """The defaults of a target."""
        return cls(target, soc_version=SOCS[target][0])

    def read(self, target: str, given: Mapping[str, str]) -> Self:
        """These options with the given values; keys `atc.NAME` are options of `atc`, see `ATC_OPTIONS`."""
        own = {k: v for k, v in given.items() if not k.startswith(_ATC)}
        if (soc := given.get("soc_version", self.soc_version)) not in SOCS[self.target]:
            raise error("OCC0603", f"option `soc_version` cannot be `{shorten(soc)}`", help=chip_hint(soc, self.target))
        made = super().read(target, own)
        if made.fusion_switch_file:
            contents("fusion_switch_file", made.fusion_switch_file)
        return replace(made, atc=checked({k.removeprefix(_ATC): v for k, v in given.items() if k not in own}))

    @property
    def table(self) -> dict[str, Option]:
        """The options by their `-C` keys; the chips are those of the target."""
        found = super().table
        return {**found, "soc_version": replace(found["soc_version"], choices=SOCS[self.target])}

    @property
    def fp16_only(self) -> bool:
        """Whether the chips have no fp32 matrix unit and no bf16."""
        return self.target in FP16_ONLY

    @property
    def precision(self) -> str:
        """The precision mode of FLOAT, by its current name.

        By default it is `origin` if the matrix unit supports fp32. The other chips have no fp32 kernel there, so
        operands in half precision are the closest that they can do.
        """
        if self.precision_mode:
            return PRECISION_MODES[self.precision_mode]
        return self.precision_mode_v2 or ("cube_fp16in_fp32out" if self.target in _HALVES else "origin")

    @property
    def precision_argument(self) -> str:
        """The argument of `atc` for the precision, in the spelling that has it."""
        mode = self.precision
        return f"--precision_mode_v2={mode}" if mode in PRECISION_MODES_V2 else f"--precision_mode={mode}"

    @property
    def gears(self) -> str:
        """The gear option in use, or empty."""
        return next((k for k in GEARS if getattr(self, k)), "")

    def check(self) -> None:
        """Reject what the chip does not support, and contradictory combinations.

        Raises:
            CompileError: OCC0603.
        """
        if self.precision_mode and self.precision_mode_v2:
            raise _exclusive("precision_mode", "precision_mode_v2")
        if self.target in _HALVES and self.precision == "mixed_bfloat16":
            message = "option `precision_mode_v2` cannot be `mixed_bfloat16`"
            raise error("OCC0603", message, help=f"`{self.target}` has no bf16; the others work")
        if self.optypelist_for_implmode and not self.op_select_impl_mode:
            raise error(
                "OCC0603",
                "`optypelist_for_implmode` names operators for `op_select_impl_mode`, which is not set",
                help="add `-C op_select_impl_mode=high_precision`",
            )
        given = [k for k in (*GEARS, "dynamic_ranges") if getattr(self, k)]
        if self.aipp and (given or not self.enable_cann_graph):
            raise _exclusive("aipp", (*given, "enable_cann_graph=false")[0])
        if given and self.offload == "cost":
            given = [*given, "offload=cost"]
        if len(given) > 1:
            raise _exclusive(*given[:2])


def chip_hint(soc: str, target: str = "") -> str:
    """The hint for an unknown chip name."""
    own = ", ".join(SOCS.get(target, [c for each in SOCS.values() for c in each]))
    if soc.lower().startswith(_NEXT):
        return f"occ has no target for this generation, which has different kernels; chips: {own}"
    if soc == "Ascend910B" and target == "ascend910b":
        return (
            "that is a chip of the first 910 generation, of `-t ascend910`; `npu-smi info` shows the digit of the "
            f"others: {own}"
        )
    for other, chips in SOCS.items():
        if soc in chips:
            return f"it is one of `-t {other}`; chips of `{target}`: {own}" if target else f"`-t {other}`"
    listed = [c for each in SOCS.values() for c in each]
    return closest(soc, SOCS.get(target, listed)) or f"chips: {own}"


def chip_remarks(options: AscendOptions) -> list[str]:
    """Warnings about a chip name that means another chip."""
    if options.soc_version != "Ascend910B":
        return []
    return [
        "Ascend910B is a chip of the first 910 generation; one that `npu-smi info` shows as 910B1 to 910B4 needs "
        "`-t ascend910b -C soc_version=Ascend910B...` with the digit"
    ]


def _exclusive(one: str, other: str) -> CompileError:
    return error("OCC0603", f"`{one}` and `{other}` exclude each other", help="give one of them")
