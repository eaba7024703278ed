"""libocc as it is installed: flags for make, pkg-config and CMake, what it needs, and what it shares with Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from building import model_of
from c_library import ROOT, block, compile_c, prefix
from programs import THREE, needs, said_by

import occ

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("here")]


def test_config_for_make(occ_cli: Any):
    said = occ_cli("config", "--cflags", "--libs").out
    assert said.startswith(f"-I{prefix()}/include ")
    shared = occ_cli("config", "--cflags", "--libs", "--shared").out
    occ.build(model_of(THREE), "cpu", out="model.occ")
    Path("main.c").write_text(block("c.md", "c", 0))
    for flags, library in ((said, False), (shared, True)):
        subprocess.run(["cc", "main.c", "-o", "main", *shlex.split(flags)], check=True)
        assert said_by("./main").startswith("probabilities ")
        needed = subprocess.run(["readelf", "-d", "main"], capture_output=True, text=True, check=True).stdout
        assert ("libocc.so" in needed) == library
    assert occ_cli("config").code == 2


def test_config_for_pkg_config_and_a_folder_that_moved(occ_cli: Any):
    needs("pkg-config")
    occ.build(model_of(THREE), "cpu", out="model.occ")
    Path("main.c").write_text(block("c.md", "c", 0))
    shutil.copytree(occ_cli("config", "--prefix").out.strip(), "moved")
    for folder in (occ_cli("config", "--pkg-config").out.strip(), str(Path("moved/lib/pkgconfig").resolve())):
        env = {**os.environ, "PKG_CONFIG_PATH": folder}
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "occ"], env=env, capture_output=True, text=True, check=True
        )
        subprocess.run(["cc", "main.c", "-o", "main", *shlex.split(flags.stdout)], check=True)
        assert said_by("./main").startswith("probabilities ")
        asked = ["pkg-config", "--modversion", "occ"]
        assert (
            subprocess.run(asked, env=env, capture_output=True, text=True, check=True).stdout.strip() == occ.__version__
        )


@pytest.mark.parametrize("standard", ["c++11", "c++14", "c++17", "c++20"])
def test_the_header_for_cpp_takes_standards_from_14_on(standard: str, occ_cli: Any):
    """Programs in C++11 get one error, and may include occ.h."""
    Path("main.cpp").write_text(block("c.md", "cpp", 0))
    flags = shlex.split(occ_cli("config", "--cflags", "--libs").out)
    command = ["g++", f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic", "main.cpp", "-o", "main", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if standard == "c++11":
        first = next(line for line in ran.stderr.splitlines() if "error" in line)
        assert "occ.hpp needs C++14 or later: compile with -std=c++14" in first
        Path("plain.cpp").write_text("#include <occ.h>\nint main() { return occ_error_text(nullptr) == nullptr; }\n")
        command[command.index("main.cpp")] = "plain.cpp"
        subprocess.run(command, check=True)
        return
    assert ran.returncode == 0, ran.stderr
    occ.build(model_of(THREE), "cpu-jit", out="model.occ")
    assert said_by("./main").startswith("probabilities ")


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["occ::occ", "occ::shared"])
def test_config_for_cmake(target: str, occ_cli: Any):
    needs("cmake", "make")
    occ.build(model_of(THREE), "cpu", out="model.occ")
    Path("main.c").write_text(block("c.md", "c", 0))
    Path("CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nfind_package(occ REQUIRED)\nadd_executable(main main.c)\n"
        f"target_link_libraries(main {target})\n"
    )
    place = occ_cli("config", "--cmake").out.strip()
    subprocess.run(["cmake", "-B", "b", f"-DCMAKE_PREFIX_PATH={place}"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", "b"], check=True, capture_output=True)
    assert said_by("b/main").startswith("probabilities ")


def test_the_library_needs_libc_alone():
    needed = subprocess.run(
        ["readelf", "-d", str(prefix() / "lib/libocc.so")], capture_output=True, text=True, check=True
    )
    libraries = re.findall(r"NEEDED.*\[(.*)\]", needed.stdout)
    assert libraries
    assert all(re.match(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so", n) for n in libraries), libraries


HARNESS = r"""
#include "model.h"
#include <cstdio>
#include <cstdlib>
int main(int argc, char **argv) {
    char hex[65];
    static unsigned char data[300];
    for (int k = 0; k < 300; k++) data[k] = (unsigned char)(7 * k);
    for (int n = 0; n < 300; n++) occ::runtime::sha256_hex(data, size_t(n), hex), puts(hex);
    printf("%d\n", occ::runtime::default_threads());
    return argc == 0 || !argv;
}
"""


@pytest.mark.parametrize("threads", ["", "3"])
def test_digests_and_threads_are_those_of_python(threads: str, monkeypatch: pytest.MonkeyPatch):
    import hashlib

    from occ.runtime.threads import default_threads

    Path("main.cpp").write_text(HARNESS)
    compile_c(Path("main.cpp"), Path("main"), (), f"-I{ROOT / 'runtime/c'}")
    monkeypatch.setenv("OCC_NUM_THREADS", threads)
    *digests, count = said_by("./main", env={"OCC_NUM_THREADS": threads}).split()
    data = bytes(7 * k % 256 for k in range(300))
    assert digests == [hashlib.sha256(data[:n]).hexdigest() for n in range(300)]
    assert int(count) == default_threads()
