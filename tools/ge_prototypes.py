"""Writes `compiler/codegen_cann/graph/prototypes.json`: the prototypes of the GE operators that the mapping emits, or that models name.

Run as `python tools/ge_prototypes.py PROTOTYPES.json`, with a record of the public operator headers (REG_OP) of several
CANN releases: inputs, outputs, attributes, element types, and the releases that have the operator. What is kept is one
line an operator: `x? FLOAT FLOAT16` for a tensor (`?` optional, `*` dynamic), `strides! ListInt` for an attribute.
"""

import json
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "compiler" / "codegen_cann"
# The header of the newest release names some groups of types by a macro in addition to other types, which the record
# leaves out. Older headers spell the same groups out.
FLOATS = ["FLOAT16", "FLOAT", "DOUBLE"]
BASIC = [
    "COMPLEX128", "COMPLEX64", "DOUBLE", "FLOAT", "FLOAT16", "INT16", "INT32", "INT64", "INT8", "UINT16", "UINT32",
    "UINT64", "UINT8", "BF16",
]  # fmt: skip
GROUPS = {
    **dict.fromkeys(("Ceil", "Floor", "Erf", "Elu", "Softplus", "Softsign", "Erfc"), FLOATS),
    **dict.fromkeys(
        (
            "StridedSliceV2", "StridedSlice", "Slice", "BroadcastTo", "ConcatV2", "Pack", "TensorScatterUpdate",
            "ScatterNdUpdate", "Select", "CastLike", "UniqueWithCountsAndSorting", "Im2col",
        ),
        BASIC,
    ),
}  # fmt: skip
# What kernels take, and Huawei's importer of ONNX writes, though the header does not say so.
UNSAID = {("Conv2DTranspose", "x"): ["FLOAT"], ("Conv2DTranspose", "filter"): ["FLOAT"]}
SPELLING = {"FLOAT32": "FLOAT", "BFLOAT16": "BF16", "FP16": "FLOAT16", "FP32": "FLOAT"}
RELEASES = (
    "graphengine r1.1.1 (2021-01)", "graphengine r1.5 (2021-10)", "graphengine r1.9 (2022-09)",
    "graphengine v2.0.0 910 (2023-03)", "graphengine v2.2.10 910b (2023-11)", "graphengine master (2025-06)",
    "hicann/ops-* (2026-08)",
)  # fmt: skip


# How names begin, or end, of what only training and collectives have.
TRAINING = re.compile(
    r"(Sparse)?Apply.*|Hcom.*|.*Grad(V\d+|WithArgmax.*)?|.*(Backprop|Table).*|Dataset.*|Embedding(?!Bag).*"
)


def wanted_names(known: set[str]) -> list[str]:
    """Operators whose name stands in quotes in the sources of the package, and those that models of torch_npu may have."""
    found = {name for name in known if not TRAINING.fullmatch(name)}
    for path in PACKAGE.rglob("*.py"):
        found |= set(re.findall(r'"([A-Z][A-Za-z0-9]+)"', path.read_text(encoding="utf-8")))
    return sorted(found & known)


def tensor(op: str, record: dict) -> str:
    """One input or output."""
    listed = list(record.get("dtypes") or [])
    if op in GROUPS and record["dtypes"] and not set(listed) & {"FLOAT", "INT32"}:
        listed = [*GROUPS[op], *(d for d in listed if d not in GROUPS[op])]
    listed += [d for d in UNSAID.get((op, record["name"]), ()) if listed]
    mark = {"required": "", "optional": "?", "dynamic": "*"}[record["kind"]]
    return " ".join([record["name"] + mark, *(SPELLING.get(d, d) for d in listed)])


def attribute(record: dict) -> list:
    """`[name, type]` of a required attribute, `[name, type, default]` of another."""
    made = [record["name"], record["type"]]
    return made if record["required"] else [*made, record["default"]]


def main() -> None:
    """Write the file."""
    prototypes = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    lines = []
    for name in wanted_names(set(prototypes)):
        p = prototypes[name]
        record = {
            "in": [tensor(name, r) for r in p["inputs"]],
            "out": [tensor(name, r) for r in p["outputs"]],
            "attrs": [attribute(a) for a in p["attrs"]],
            "graphs": [g["name"] for g in p["graphs"]],
            "since": min(RELEASES.index(s) for s in p["seen_in"]),
        }
        lines.append(f"{json.dumps(name)}: {json.dumps(record)}")
    (PACKAGE / "graph" / "prototypes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} operators")


if __name__ == "__main__":
    main()
