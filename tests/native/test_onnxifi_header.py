"""onnxifi.h of occ against the one that Debian packages: the same numbers, layouts and prototypes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from onnxifi_parts import HEADER, library, needs

LAYOUTS = {
    "onnxTensorDescriptorV1": ("tag", "name", "dataType", "memoryType", "dimensions", "shape", "buffer"),
    "onnxMemoryFenceV1": ("tag", "type", "event"),
}
TYPES = (
    "onnxBackendID", "onnxBackend", "onnxGraph", "onnxEvent", "onnxStatus", "onnxEventState", "onnxBackendInfo", "onnxEnum",
    "onnxBitfield", "onnxPointer", "onnxExtensionFunctionPointer",
)  # fmt: skip


def printed(tmp_path: Path, include: str, names: list[str]) -> str:
    """Numbers, sizes and offsets by a header, as a program prints them."""
    lines = [f'printf("{n} %lld\\n", (long long)({n}));' for n in names]
    for t, members in LAYOUTS.items():
        lines.append(f'printf("{t} %zu\\n", sizeof(struct {t}));')
        lines += [f'printf("{t}.{m} %zu\\n", offsetof(struct {t}, {m}));' for m in members]
    lines += [f'printf("{t} %zu %d\\n", sizeof({t}), ({t})-1 < ({t})1);' for t in TYPES]
    source = tmp_path / "p.c"
    source.write_text(f"{include}\n#include <stdio.h>\nint main(void) {{ {' '.join(lines)} }}")
    subprocess.run(["gcc", "-w", str(source), "-o", str(tmp_path / "p")], check=True)
    return subprocess.run([tmp_path / "p"], capture_output=True, text=True, check=True).stdout


def prototypes(text: str) -> dict[str, list[str]]:
    """Types of arguments by function; names of arguments left out."""
    plain = re.sub(r"^#.*$", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S), flags=re.M)
    found: dict[str, list[str]] = {}
    for name, arguments in re.findall(r"\b(onnx[A-Z]\w+)\s*\(([^()]*)\)\s*;", plain):
        found[name] = [re.sub(r"\s*\b\w+$", "", " ".join(a.split())).replace(" *", "*") for a in arguments.split(",")]
    return found


def test_the_header_is_that_of_onnx(tmp_path: Path):
    needs(HEADER)
    ours = (library().parent / "onnxifi.h").read_text()
    theirs = HEADER.read_text() + HEADER.with_name("onnxifi_ext.h").read_text()
    names = re.findall(r"^#define (ONNXIFI_\w+) (?:0x)?[0-9A-F]+$", ours, re.M)
    values = re.findall(r"^#define (ONNXIFI_\w+) (?:0x)?[0-9A-Fa-f]+$", HEADER.read_text(), re.M)
    values.remove("ONNXIFI_H")
    assert len(names) > 110
    assert set(values) <= set(names), "a number is missing"
    mine = printed(tmp_path, f'#include "{library().parent / "onnxifi.h"}"', names)
    assert mine == printed(tmp_path, f'#include "{HEADER}"\n#include "{HEADER.with_name("onnxifi_ext.h")}"', names)
    wanted = prototypes(theirs)
    assert len(wanted) == 17
    assert prototypes(ours) == wanted
