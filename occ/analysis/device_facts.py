"""Device parts of an Ascend artifact, for `occ.inspect`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from occ.runtime.device_part import DevicePart
from occ.runtime.manifest import Manifest


def device_facts(m: Manifest, labels: Mapping[str, str], files: Mapping[str, bytes]) -> dict[str, Any]:
    """Chip, precision, parts, GE operators and sizes of an artifact for Ascend; empty for other targets.

    Args:
        m: of the artifact.
        labels: the model's names of dims, by symbol.
        files: of the artifact.

    Returns:
        `chip`; `precision` (of `precision_mode_v2`); `parts`, a line for each part of the device and of the CPU;
        `ge_operators` (counts by type, including sub-graphs, without inputs and constants, from the build);
        `on_the_cpu`, ONNX operators; `kernel_tables`, the release of the kernel tables; `units`, the number of nodes on
        each unit; `ai_cpu`, what the AI CPU runs, why, and remedies; `placed`, for each part its nodes with unit and
        reason, which text omits; `gears` and `ranges`, the supported sizes; `estimates`, a line for each part with
        `offload=cost`; `atc`, the commands that compile the parts.
    """
    if m.engine != "ascend":
        return {}
    return {
        "chip": ", ".join(sorted({p.soc for p in m.parts})) or m.machine,
        "precision": m.summary.get("precision", ""),
        "parts": [_part(p) for p in m.parts] + [f"{name}: on the CPU" for name in m.cpu_subgraphs],
        "ge_operators": m.summary.get("ge_operators", {}),
        "on_the_cpu": m.summary.get("cpu_operators", []),
        **{k: m.summary[k] for k in ("kernel_tables", "units", "ai_cpu") if k in m.summary},
        "placed": {
            p.name: json.loads(files[name]) for p in m.parts if (name := f"device/{p.name}.units.json") in files
        },
        "gears": [line for p in m.parts for line in _gears(p, labels)],
        "ranges": [line for p in m.parts for line in _ranges(p, labels)],
        "estimates": [f"{e['part']}: {e['text']}" for e in m.summary.get("estimates", ()) if "text" in e],
        "atc": [shlex.join(p.command) for p in m.parts if not p.om],
    }


def _part(p: DevicePart) -> str:
    if p.program:
        state = "operator by operator"
    elif p.om:
        state = f"compiled to {p.om}" + (f" by CANN {p.toolkit}" if p.toolkit else "")
    else:
        state = f"{p.air}, not compiled yet"
    tensors = [
        f"{len(v)} {what}{'s' if len(v) != 1 else ''}" for v, what in ((p.inputs, "input"), (p.outputs, "output"))
    ]
    return f"{p.name}: {state}; {', '.join(tensors)}, {p.weights} bytes of weights, {p.workspace} of work space"


def _gears(p: DevicePart, labels: Mapping[str, str]) -> list[str]:
    return [", ".join(f"{labels.get(name, name)}={size}" for name, size in gear.items()) for gear in p.gears]


def _ranges(p: DevicePart, labels: Mapping[str, str]) -> list[str]:
    made: list[str] = []
    for name, (least, most, step) in p.ranges.items():
        end = "any" if most < 0 else str(most)
        made.append(f"{labels.get(name, name)}: {least} to {end}" + (f" in steps of {step}" if step > 1 else ""))
    return made
