"""Kernel lists of an installed CANN toolkit.

They are read from `aic-*-ops-info*.json`, `aicpu_*.json` and `tf_kernel.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from occ.compiler.codegen_cann.graph.kernels import Kernel, KernelTable, Operand, builtin, with_decided
from occ.compiler.diagnostics import error, shorten
from occ.runtime.release import read_release

# Folders of an `opp` folder, the toolkit's own and those of operator packages, and how chips are named in them.
_CORE = ("built-in/op_impl/ai_core/tbe/config/{soc}", "vendors/*/op_impl/ai_core/tbe/config/{soc}")
_CPU = ("built-in/op_impl/aicpu", "vendors/*/op_impl/cpu/config")
ORDER = ("AI Core", "AI CPU", "TF")  # the order in which GE tries the units
_LIBRARIES = {"AICPUKernel": "AI CPU", "CUSTAICPUKernel": "AI CPU", "TFKernel": "TF"}
_TYPES = {
    "float": "FLOAT", "float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BF16", "double": "DOUBLE",
    "float64": "DOUBLE", "bool": "BOOL",
}  # fmt: skip


def kernels_for(chip: str) -> KernelTable:
    """Kernel tables of a chip: from the toolkit under ASCEND_HOME_PATH, otherwise the built-in ones.

    Raises:
        CompileError: OCC0404 a table of the toolkit cannot be read.
    """
    home = os.environ.get("ASCEND_HOME_PATH", "")
    return (_installed(home, chip, _stamp(home, chip)) if home else None) or builtin(chip)


@cache
def _installed(home: str, chip: str, _stamp: tuple[int, ...]) -> KernelTable | None:
    made = read_tables(Path(home), chip)
    if not made:
        return None
    for op, rows in made.items():  # TensorFlow's kernels state no types: they count if no chip has another one
        if rows[0].unit == "TF" and not any(k.unit == "TF" for k in builtin(chip).kernels(op)):
            made[op] = []
    return KernelTable(with_decided(chip, made), release_of(Path(home)), installed=True)


def read_tables(home: Path, chip: str) -> dict[str, list[Kernel]]:
    """The kernels by operator from the tables of a toolkit, AI Core's first.

    None if it has no table for the chip.

    Raises:
        CompileError: OCC0404 a table cannot be read.
    """
    made: dict[str, list[Kernel]] = {}
    for path in _tables(home, chip):
        for op, record in _read(path).items():
            made.setdefault(op, []).append(_core(record))
    for path in _cpu_tables(home) if made else ():
        for op, record in _read(path).items():
            info = record.get("opInfo")
            if unit := _LIBRARIES.get(str(info.get("opKernelLib"))) if isinstance(info, dict) else None:
                made.setdefault(op, []).append(_cpu(record, unit))
    return {op: sorted(rows, key=lambda k: ORDER.index(k.unit)) for op, rows in made.items()}


def _tables(home: Path, chip: str) -> list[Path]:
    """The tables of AI Core kernels of a chip; newer releases have several."""
    soc = f"ascend{chip}"
    opp = home / "opp"
    return sorted(p for folder in _CORE for p in opp.glob(f"{folder.format(soc=soc)}/aic-{soc}-ops-info*.json"))


def _cpu_tables(home: Path) -> list[Path]:
    opp = home / "opp"
    found = {p for folder in _CPU for p in opp.glob(f"{folder}/**/*.json")}
    return sorted(p for p in found if p.name.startswith(("aicpu_", "tf_kernel", "cust_aicpu_")))


def _stamp(home: str, chip: str) -> tuple[int, ...]:
    """When the tables were written, so that a process notices a new installation."""
    return tuple(p.stat().st_mtime_ns for p in (*_tables(Path(home), chip), *_cpu_tables(Path(home))))


def release_of(home: Path) -> str:
    """The release of a toolkit, from `version.info`."""
    return next(
        filter(None, (read_release(home / name / "version.info", name) for name in ("opp", "compiler", "."))), "unknown"
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise error(
            "OCC0404",
            f"cannot read the kernels of the toolkit, `{shorten(str(path))}`: {shorten(str(e))}",
            help="install the toolkit anew, or unset ASCEND_HOME_PATH",
        ) from None
    return {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}


def _core(record: Mapping[str, Any]) -> Kernel:
    support = record.get("dynamicShapeSupport")
    dynamic = isinstance(support, dict) and str(support.get("flag")).lower() == "true"
    decided = "dynamicFormat" in record
    sides = [tuple(_operand(r, "dtype", decided) for r in _records(record, side)) for side in ("input", "output")]
    return Kernel("AI Core", dynamic, sides[0], sides[1])


def _cpu(record: Mapping[str, Any], unit: str) -> Kernel:
    sides = [tuple(_operand(r, "type", False) for r in _records(record, side)) for side in ("input", "output")]
    return Kernel(unit, True, sides[0], sides[1], paired=False)


def _records(record: Mapping[str, Any], side: str) -> Iterator[Mapping[str, Any]]:
    k = 0
    while isinstance(found := record.get(f"{side}{k}"), dict):
        yield found
        k += 1


def _operand(record: Mapping[str, Any], key: str, decided: bool) -> Operand:
    listed = [t.strip() for t in str(record.get(key, "")).split(",")]
    types = () if decided else tuple(_type(t) for t in listed if t)
    return Operand(str(record.get("name", "")), record.get("paramType") == "dynamic", types)


def _type(text: str) -> str:
    """GE's name of an element type, given `float16` or `DT_FLOAT16`."""
    bare = text.removeprefix("DT_").lower()
    return _TYPES.get(bare, bare.upper())
