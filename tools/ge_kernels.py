"""Writes `compiler/codegen_cann/graph/kernels.json`: the kernels that a CANN toolkit installs, of the operators that have a prototype.

Run as `python tools/ge_kernels.py ASCEND_HOME`. A record is one line: the unit, the chips (`+` where extents may be unknown), and
for each tensor its name (`>` before results, `*` after repeated ones) with its element types, `=` for those of the first; without
types where code of the kernel decides.
"""

import json
import sys
from pathlib import Path

from occ.compiler.codegen_cann.graph.installed import ORDER, read_tables, release_of
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
    home = Path(sys.argv[1])
    rows: dict[str, dict[str, list[str]]] = {}
    for chip in CHIPS:
        found = read_tables(home, chip)
        assert found, f"no tables of the {chip} under {home}"
        for op in sorted(found.keys() & prototypes().keys()):
            for k in found[op]:
                key = json.dumps([k.unit, tensors(k)], separators=(",", ":"))
                rows.setdefault(op, {}).setdefault(key, []).append(chip + ("+" if k.dynamic else ""))
    text = ",\n".join(f"{json.dumps(op)}:{json.dumps(records(rows[op]), separators=(',', ':'))}" for op in sorted(rows))
    TARGET.write_text(f'{{"release":{json.dumps(release_of(home))},\n"operators":{{\n{text}\n}}}}\n', encoding="utf-8")


def records(found: dict[str, list[str]]) -> list[list[object]]:
    """The records of an operator; TensorFlow's kernels, which state no types, where no chip has another one."""
    made: list[list[object]] = []
    for key, chips in found.items():
        unit, each = json.loads(key)
        everywhere = len(chips) == len(CHIPS) and all(c.endswith("+") for c in chips)
        made.append([unit, "all" if everywhere else " ".join(chips), each])
    typed = [r for r in made if r[0] != "TF"]
    return sorted(typed or made, key=lambda r: ORDER.index(str(r[0])))


if __name__ == "__main__":
    main()
