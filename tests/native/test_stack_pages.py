"""Frames of kernels begin at the end of a page of the stack, wherever their caller's are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from programs import needs, said_by

import occ.runtime

pytestmark = pytest.mark.toolchain
SOURCE = r"""
#include "pool.cpp"
#include <alloca.h>

static int frame(void **) { return int(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) % 4096); }

int main() {
    int least = 4096;
    for (size_t k = 16; k <= 4096; k += 16) {
        static_cast<volatile char *>(alloca(k))[0] = 0;
        const int at = occ_run_kernel(frame, nullptr);
        if (at < least) least = at;
    }
    printf("%d", least);
}
"""


def test_frames_of_kernels_are_in_one_page(tmp_path: Path) -> None:
    """Otherwise vectors that a kernel keeps on its stack may be in two, which takes up to twice the time."""
    needs("g++")
    (tmp_path / "program.cpp").write_text(SOURCE)
    include = Path(occ.runtime.__file__).parent / "c"
    command = ["g++", "-std=c++17", "-O2", f"-I{include}", "program.cpp", "-o", "program", "-pthread"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    assert int(said_by(tmp_path / "program")) > 4096 - 256
