"""Other runtimes as on a machine without AVX-512, where CPUID does not fault: `bench/trap_cpuid.py` and `avx2_only.c`."""

import os
import platform
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
TRAP = runpy.run_path(str(BENCH / "trap_cpuid.py"))
PROGRAM = r"""
#include <cpuid.h>
#include <stdio.h>
int main(void) {
  unsigned a, b, c, d;
  __cpuid_count(7, 0, a, b, c, d);
  printf("%u %u", b >> 16 & 1, c >> 11 & 1);
}
"""
NEEDED = platform.machine() == "x86_64" and all(map(shutil.which, ("gcc", "objdump", "readelf")))


@pytest.mark.skipif(not NEEDED, reason="needs gcc and binutils on x86-64")
def test_a_trapped_program_sees_neither_avx512_nor_vnni(tmp_path: Path) -> None:
    (tmp_path / "asks").mkdir()
    (tmp_path / "asks.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-o", tmp_path / "asks" / "asks.so", tmp_path / "asks.c"], check=True)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", tmp_path / "only.so", BENCH / "avx2_only.c"], check=True)
    TRAP["main"](str(tmp_path / "asks"), str(tmp_path / "copy"))
    env = {**os.environ, "AVX2_ONLY_TRAPS": "1"}
    program = tmp_path / "copy" / "asks.so"
    assert subprocess.run([program], env=env, capture_output=True).returncode < 0
    seen = subprocess.run(
        [program], env={**env, "LD_PRELOAD": str(tmp_path / "only.so")}, capture_output=True, text=True
    )
    assert (seen.returncode, seen.stdout) == (0, "0 0")
