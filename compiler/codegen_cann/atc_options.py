"""Option table of `atc`, the compiler of the CANN toolkit.

Each row says which values an option accepts, and what `-C atc.NAME=VALUE` does with it.

Names, values and meanings follow `atc --help` of CANN 8.1 to 9.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from occ.compiler.diagnostics import closest, error, shorten
from occ.runtime.dataclass import dataclass

Kind = Literal["text", "file", "folder"]
_LARGEST = 16 << 20  # bytes of a configuration file


@dataclass(frozen=True)
class AtcOption:
    """An option of `atc`.

    Attributes:
        kind: `file` is a configuration, shipped with the graph; `folder` is a place on the toolkit's machine.
        values: allowed values; any of its kind if empty.
        own: the `-C` option of occ that sets it, if there is one.
        instead: what to do instead, if it has no effect on graphs of occ or would make them wrong; or empty.
        holds: values that state what is true anyway, for an option with `instead`.
    """

    kind: Kind = "text"
    values: tuple[str, ...] = ()
    own: str = ""
    instead: str = ""
    holds: tuple[str, ...] = ()

    def allows(self, value: str) -> bool:
        """Whether a value, or each of a list for several inputs, states what is true anyway."""
        return bool(self.holds) and set(value.split(",")) <= set(self.holds)

    @property
    def is_passed(self) -> bool:
        """Whether `atc` gets it unchanged."""
        return not self.own and not self.instead


_FILE, _FOLDER, _TEXT = AtcOption("file"), AtcOption("folder"), AtcOption()
_BIT, _BOOL = AtcOption(values=("0", "1")), AtcOption(values=("true", "false"))
_ADJUST = (
    "graphs of occ have the formats that the ONNX model declares; `atc` uses this only for other "
    "frameworks: leave it out"
)


def _own(key: str) -> AtcOption:
    return AtcOption(own=key)


def _instead(remedy: str, *holds: str) -> AtcOption:
    return AtcOption(instead=remedy, holds=holds)


ATC_OPTIONS: dict[str, AtcOption] = {
    # what occ itself writes
    "model": _instead("occ names the parts: the model is the argument MODEL"),
    "output": _instead("`-o` sets the output path"),
    "framework": _instead("occ reads ONNX models, which are framework 5: export the model to ONNX", "5"),
    "mode": _instead("occ build makes a model, which is mode 0; `occ check` and `occ inspect` do what other modes do", "0"),
    "input_shape": _instead("`--shape NAME=1,3,224,224` sets extents, `-C dynamic_ranges=DIM=1..8` sets bounds"),
    "input_format": _instead("inputs have the layout that the ONNX model declares: add a Transpose to the model", "NCHW", "ND", "NCDHW"),
    "soc_version": _own("soc_version"),
    "precision_mode": _own("precision_mode"), "precision_mode_v2": _own("precision_mode_v2"),
    "keep_dtype": _own("keep_dtype"),
    "dynamic_batch_size": _own("dynamic_batch_size"), "dynamic_image_size": _own("dynamic_image_size"),
    "dynamic_dims": _own("dynamic_dims"),
    "fusion_switch_file": _own("fusion_switch_file"), "insert_op_conf": _own("aipp"),
    "op_select_implmode": _own("op_select_impl_mode"), "optypelist_for_implmode": _own("optypelist_for_implmode"),
    "input_fp16_nodes": _own("input_fp16_nodes"), "output_type": _own("output_type"),
    # how kernels compute
    "op_precision_mode": _FILE, "modify_mixlist": _FILE, "customize_dtypes": _FILE, "allow_hf32": _BOOL,
    "deterministic": _BIT, "deterministic_level": AtcOption(values=("0", "1", "2")), "is_weight_clip": _BIT,
    # how graphs are optimised
    "buffer_optimize": AtcOption(values=("l1_optimize", "l2_optimize", "off_optimize")), "optimization_switch": _TEXT,
    "oo_level": _TEXT, "enable_small_channel": _BIT, "disable_reuse_memory": _BIT, "enable_single_stream": _BOOL,
    "atomic_clean_policy": _BIT, "ac_parallel_enable": _BIT, "tiling_schedule_optimize": _BIT,
    "static_model_ops_lower_limit": _TEXT, "jit_compile": AtcOption(values=("0", "1", "2")),
    "shape_generalized_build_mode": AtcOption(values=("shape_generalized", "shape_precise")),
    "raw_ge_options": _FILE, "raw_ge_options_ignore_unsupported": _BOOL,
    # weights
    "enable_compress_weight": _BOOL, "compress_weight_conf": _FILE, "compression_optimize_conf": _FILE,
    "sparsity": _BIT,
    "enable_attr_compression": _BOOL, "external_weight": AtcOption(values=("0", "1", "2")),
    # the chip and the machine
    "virtual_type": _BIT, "core_type": AtcOption(values=("AiCore", "VectorCore")), "aicore_num": _TEXT,
    "device_id": _TEXT, "host_env_os": _TEXT, "host_env_cpu": _TEXT, "cluster_config": _FILE,
    "hccl_sub_comm_config": _FILE, "build_config": _TEXT,
    # tuning and caches
    "auto_tune_mode": _TEXT, "mdl_bank_path": _FOLDER, "op_bank_path": _FOLDER, "op_compiler_cache_dir": _FOLDER,
    "op_compiler_cache_mode": AtcOption(values=("enable", "disable", "force")),
    # inspection
    "log": AtcOption(values=("debug", "info", "warning", "error", "null")),
    "op_debug_level": AtcOption(values=("0", "1", "2", "3", "4")),
    "op_debug_config": _FILE, "debug_dir": _FOLDER, "status_check": _BIT, "quant_dumpable": _BIT,
    "display_model_info": _BIT,
    # no effect on graphs of occ, or makes them wrong
    "out_nodes": _instead(
        "atc cuts the model there: run `occ extract MODEL --to NAME -o part.onnx` and build part.onnx; `--outputs "
        "NAME` adds outputs to the declared ones"
    ),
    "input_shape_range": _instead("`-C dynamic_ranges=DIM=1..8` sets bounds of the dims that `occ inspect MODEL` "
                                  "lists"),
    "input_hint_shape": _instead("`-C dynamic_dims=` and `-C dynamic_ranges=` set the sizes of symbolic dims"),
    "is_input_adjust_hw_layout": _instead(_ADJUST, "false"), "is_output_adjust_hw_layout": _instead(_ADJUST, "false"),
    "weight": _instead("it is the weight file of a Caffe model: export the model to ONNX"),
    "op_name_map": _instead("it names operators of Caffe and TensorFlow: export the model to ONNX"),
    "enable_scope_fusion_passes": _instead("it is for TensorFlow: `--rules FILE` loads fusions of your own"),
    "cal_conf": _instead("quantise the ONNX model: operators between QuantizeLinear and DequantizeLinear run in 8 "
                         "bits"),
    "singleop": _instead("`-C enable_cann_graph=false` builds and runs a model operator by operator"),
    "om": _instead("`occ inspect` describes models and artifacts"),
    "json": _instead("`occ dump --stage ge --format json` writes graphs"),
    "dump_mode": _instead("`occ dump --stage ge` shows graphs with their shapes", "0"),
    "save_original_model": _instead("`--emit air` writes the graph before it is compiled", "false"),
    "check_report": _instead("`occ check MODEL` reports what the device cannot take"),
    "target": _instead("`-t` names the target"),
    "help": _instead("`occ build --help` lists the options"),
}  # fmt: skip


def checked(given: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Options that `atc` gets unchanged, in the order of the table.

    Args:
        given: values by option name.

    Raises:
        CompileError: OCC0603 an unknown name, one that occ sets itself or without effect, or an invalid value.
    """
    made = {name: value for name, v in given.items() if (value := _value(name, str(v))) is not None}
    return tuple((name, made[name]) for name in ATC_OPTIONS if name in made)


def _value(name: str, value: str) -> str | None:
    found = ATC_OPTIONS.get(name)
    if found is None:
        known = closest(name, ATC_OPTIONS) or "`atc --help` lists them"
        raise error("OCC0603", f"`atc` has no option `--{shorten(name, 60)}`", help=known)
    if found.own:
        raise error(
            "OCC0603", f"`-C atc.{name}`: occ sets this itself", help=f"give `-C {found.own}={shorten(value, 80)}`"
        )
    if found.allows(value):
        return None
    if found.instead:
        raise error(
            "OCC0603", f"`-C atc.{name}={shorten(value, 80)}` is not compatible with graphs of occ", help=found.instead
        )
    return _checked(name, found, value)


def _checked(name: str, option: AtcOption, value: str) -> str:
    key = f"`-C atc.{name}`"
    if any(not c.isprintable() for c in value) or not value:
        raise error("OCC0603", f"{key} takes printable text, not `{shorten(value, 80)}`")
    if option.values:
        value = value.lower() if option.values == _BOOL.values else value
        if value not in option.values:
            raise error(
                "OCC0603", f"{key} cannot be `{shorten(value, 80)}`", help=f"one of: {', '.join(option.values)}"
            )
    if option.kind == "file":
        contents(f"atc.{name}", value)
    return os.path.abspath(value) if option.kind == "folder" else value


def contents(key: str, path: str) -> bytes:
    """The configuration file that an option names.

    Raises:
        CompileError: OCC0603 it cannot be read, or is not a file.
    """
    if not os.path.isfile(path):  # unlike `Path.is_file`, it accepts texts of any length
        raise error(
            "OCC0603", f"`-C {key}={shorten(path, 80)}` names no file", help="paths start from the current folder"
        )
    try:
        if Path(path).stat().st_size > _LARGEST:
            raise error("OCC0603", f"`-C {key}={shorten(path, 80)}` is not a configuration: it has more than 16 MiB")
        return Path(path).read_bytes()
    except OSError as e:
        raise error("OCC0603", f"`-C {key}={shorten(path, 80)}` cannot be read: {e.strerror}") from None
