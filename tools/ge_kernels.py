"""Writes `compiler/codegen_cann/graph/kernels.json`: the kernels that a CANN toolkit installs, of the operators that have a prototype.

Run as `python tools/ge_kernels.py ASCEND_HOME`. A record is one line: the unit, the chips (`+` where extents may be unknown), and
for each tensor its name (`>` before results, `*` after repeated ones) with its element types, `=` for those of the first; without
types where code of the kernel decides.
"""

import json
import os
import sys
from pathlib import Path

from occ.compiler.codegen_cann.graph import installed
from occ.compiler.codegen_cann.graph.kernels import Kernel
from occ.compiler.codegen_cann.graph.prototypes import prototypes

CHIPS = ("310", "310b", "310p", "910", "910b")
TARGET = Path(__file__).parents[1] / "compiler" / "codegen_cann" / "graph" / "kernels.json"


def tensors(kernel: Kernel) -> list[str]:
    """The tensors of a kernel as text."""
    made: list[str] = []
    first: tuple[str, ...] = ()
    for mark, operands in (("", kernel.inputs), (">", kernel.outputs)):
        for o in operands:
            types = "=" if o.types and o.types == first else ",".join(o.types)
            first = first or o.types
            made.append(f"{mark}{o.name}{'*' if o.repeated else ''} {types}".rstrip())
    return made


def main() -> None:
    """Read the tables of a toolkit and write ours."""
    os.environ["ASCEND_HOME_PATH"] = sys.argv[1]
    installed.with_decided = lambda _, kernels: dict(kernels)  # what code decides is not of the toolkit
    rows: dict[str, dict[str, list[str]]] = {}
    for chip in CHIPS:
        table = installed.kernels_for(chip)
        assert table.installed, f"no tables of the {chip} under {sys.argv[1]}"
        for op in sorted(o for o in table.operators if o in prototypes()):
            for k in table.kernels(op):
                key = json.dumps([k.unit, tensors(k)], separators=(",", ":"))
                rows.setdefault(op, {}).setdefault(key, []).append(chip + ("+" if k.dynamic else ""))
    lines: list[str] = []
    for op in sorted(rows):
        records = [[*json.loads(key)[:1], "all" if len(chips) == len(CHIPS) and all(c[-1] == "+" for c in chips) else " ".join(chips), json.loads(key)[1]] for key, chips in sorted(rows[op].items(), key=lambda r: installed.ORDER.index(json.loads(r[0])[0]))]  # fmt: skip
        lines.append(f"{json.dumps(op)}:{json.dumps(records, separators=(',', ':'))}")
    text = "{" + f'"release":{json.dumps(table.release)},\n"operators":{{\n' + ",\n".join(lines) + "\n}}\n"
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
