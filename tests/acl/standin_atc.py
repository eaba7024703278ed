"""A stand-in for `atc`: takes the flags of `--framework=1`, and makes an `.air` file what the stand-in device loads.

The `.air` is read with the simulator's reader, and goes into the result together with the flags that decide what is
computed, so that the device runs what was compiled. What the real one refuses, this one refuses with its codes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from ascend_standin import P, om, operator_model

from occ.compiler.ge_simulator.reader import BadGraph, Graph, Tensor, read
from occ.runtime.acl.prototypes import DATA_TYPES
from occ.runtime.signature import numpy_dtype

SOCS = ("Ascend310", "Ascend310P", "Ascend910", "Ascend910A", "Ascend910B", "Ascend910Pr", "Ascend910Premium")
FLAGS = (
    "mode", "framework", "model", "output", "soc_version", "precision_mode", "precision_mode_v2", "op_select_implmode",
    "optypelist_for_implmode", "fusion_switch_file", "input_shape", "input_format", "dynamic_batch_size",
    "dynamic_image_size", "dynamic_dims", "singleop", "log", "modify_mixlist", "deterministic", "op_precision_mode", "external_weight",
)  # fmt: skip


class Refused(Exception):
    """A message of atc."""


def flags(arguments: list[str]) -> dict[str, str]:
    made: dict[str, str] = {}
    for argument in arguments:
        name, sign, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not sign or name not in FLAGS:
            raise Refused(f"E10003: Value [{argument}] for parameter is invalid. Reason: unknown command line flag")
        made[name] = value
    for name in ("singleop",) if "singleop" in made else ("model", "output", "soc_version"):
        if name not in made:
            raise Refused(f"E10004: Value for [--{name}] is empty.")
    if ("singleop" not in made and made.get("framework") != "1") or not made["soc_version"].startswith(SOCS):
        raise Refused("E10001: Value for --framework or --soc_version is invalid.")
    if len([k for k in made if k.startswith("dynamic_")]) > 1 or {"precision_mode", "precision_mode_v2"} <= set(made):
        raise Refused("E10057: these options cannot be set together.")
    return made


def main(arguments: list[str]) -> None:
    given = flags(arguments)
    if "singleop" in given:
        for k, entry in enumerate(json.loads(Path(given["singleop"]).read_text())):
            Path(given["output"], f"{k}_{entry['op']}.om").write_bytes(operator_model(entry))
        return
    path = Path(given["model"])
    beside = {p.name: p.read_bytes() for p in path.parent.iterdir() if p.is_file() and p.suffix not in (".air", ".sh")}
    data = path.read_bytes()
    graph = next(iter(read(data, beside).values()))
    inputs = [port(n.name, n.output_descs[0]) for n in graph.data]
    overrides = dict(item.rsplit(":", 1) for item in given.get("input_shape", "").split(";") if item)
    if unknown := set(overrides) - {p.name for p in inputs}:
        raise Refused(f"E10016: Opname [{unknown.pop()}] specified in [--input_shape] is not found in the model.")
    for k, p in enumerate(inputs):
        if p.name in overrides:
            inputs[k] = P(p.name, p.dtype, tuple(int(d) for d in overrides[p.name].split(",") if d), p.format)
    head = {"precision": given.get("precision_mode_v2") or given.get("precision_mode", "fp16"), "soc": given["soc_version"],
            "flags": sorted(f"--{k}={v}" for k, v in given.items()), "sizes": {name: len(content) for name, content in beside.items()}}  # fmt: skip
    payload, outside = json.dumps(head).encode() + b"\n" + data + b"".join(beside.values()), ""
    if given.get("external_weight", "0") != "0":
        payload, _, rest = payload.partition(b"\n")
        payload, outside = payload + b"\n", f"weight_{hashlib.sha256(rest).hexdigest()[:16]}"
        Path("weight").mkdir()
        Path("weight", outside).write_bytes(rest)
    weight = sum(len(content) for content in beside.values()) + len(data)
    Path(given["output"] + ".om").write_bytes(
        om(
            payload,
            inputs,
            outputs(graph),
            soc=given["soc_version"],
            work=1 << 16,
            weight=weight,
            gears=gears(given, inputs),
            outside=outside,
        )
    )


def gears(given: dict[str, str], inputs: list[P]) -> str:
    """As the header of a model has them; those of `dims` with all extents of all inputs in a row."""
    for flag, kind in (("dynamic_batch_size", "batch"), ("dynamic_image_size", "image")):
        if flag in given:
            return " ".join([kind, *given[flag].split("," if kind == "batch" else ";")])
    rows = []
    for gear in given["dynamic_dims"].strip(";").split(";") if "dynamic_dims" in given else ():
        sizes = iter(gear.split(","))
        rows.append(",".join(next(sizes) if d < 0 else str(d) for p in inputs for d in p.shape))
    return " ".join(["dims", *rows]) if rows else ""


def outputs(graph: Graph) -> list[P]:
    nodes = {n.name: n for n in graph.nodes}
    descs = [(f"{name}:{k}", nodes[name].output_descs[k]) for name, k in graph.outputs]
    return [port(f"{name}:{desc.name}", desc) for name, desc in descs]


def port(name: str, desc: Tensor) -> P:
    dtype = next(k for k in DATA_TYPES if numpy_dtype(k) == desc.dtype)
    return P(name, dtype, desc.shape, desc.format)


if __name__ == "__main__":
    print("ATC start working now, please wait for a moment.")
    try:
        main(sys.argv[1:])
    except (Refused, BadGraph, OSError) as e:
        print(f"ATC run failed, Please check the detail log, Try 'atc --help' for more information\n{e}")
        sys.exit(1)
    print("ATC run success, welcome to the next use.")
