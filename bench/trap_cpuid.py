"""Replaces CPUID by an instruction that traps, in a copy of a package, for processors on which CPUID does not fault.

    python bench/trap_cpuid.py SITE-PACKAGES/onnxruntime COPY/onnxruntime
    AVX2_ONLY_TRAPS=1 LD_PRELOAD=./avx2_only.so PYTHONPATH=COPY occ bench ... --target-cpu x86-64-v3

`bench/avx2_only.c` answers the trap. Needs objdump and readelf.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

_CPUID, _UD2 = b"\x0f\xa2", b"\x0f\x0b"
_SECTION = re.compile(r"PROGBITS\s+([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)")  # address, offset, size


def main(package: str, copy: str) -> None:
    shutil.copytree(package, copy)
    for library in Path(copy).rglob("*.so*"):
        print(f"{trap(library)} in {library}")


def trap(library: Path) -> int:
    """Replaces each CPUID of a library, and returns how many there are."""
    found = _SECTION.findall(_output("readelf", "-SW", library))
    sections = [tuple(int(n, 16) for n in numbers) for numbers in found]
    lines = _output("objdump", "-d", "--no-show-raw-insn", library).splitlines()
    places = [int(line.partition(":")[0], 16) for line in lines if line.endswith("\tcpuid")]
    code = bytearray(library.read_bytes())
    for place in places:
        at = next(place - start + offset for start, offset, size in sections if start <= place < start + size)
        assert code[at : at + 2] == _CPUID
        code[at : at + 2] = _UD2
    library.write_bytes(code)
    return len(places)


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
