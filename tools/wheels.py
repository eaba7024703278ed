"""`make wheels`: a wheel that brings along what a first build compiles of our C++, for the machine and C library of this one.

The wheel without them stays what `pip wheel .` makes. Its tag says the oldest glibc that runs what is in it: for an older one than
this machine's, build on an older distribution, such as in an image of https://github.com/pypa/manylinux. The front end of Halide
is linked with the libstdc++ of the system, as Halide itself is, so Zig and its libc++ cannot make it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide import programs
from occ.compiler.codegen_halide.toolchain import toolchain
from occ.compiler.prebuilt import INDEX, made_of
from occ.compiler.standalone import libocc
from occ.onnxruntime import library
from occ.runtime.elf import needed_versions
from occ.runtime.version import occ_version

ROOT = Path(__file__).parents[1]


def compile_parts(out: Path) -> str:
    """Put the compiled parts and their index into a folder; returns the oldest glibc that runs them.

    Raises:
        CompileError: a part of the toolchain is missing.
    """
    tools, cache = toolchain(), Cache()
    keys = {
        programs.EMITTER: made_of(programs.emitter_sources(), tools.halide_version),
        programs.RUNTIME: made_of({"runtime.cpp": programs.runtime_source()}),
        libocc.LIBOCC: made_of(libocc.sources(), *libocc.FLAGS, occ_version()),
        library.NAME: library.library_key("cpu"),
        library.ASCEND: library.library_key("ascend"),
    }
    beside = f"$ORIGIN/{programs.BESIDE}/{tools.library.parent.name}"
    shutil.copy(programs.emitter(tools, cache, beside), out / programs.EMITTER)
    shutil.copy(programs.runtime_object(tools, cache), out / programs.RUNTIME)
    shutil.copytree(libocc.libocc(cache), out / libocc.LIBOCC)
    plugins = {"cpu": out / library.NAME, "ascend": out / library.ASCEND}
    for kind, path in plugins.items():
        shutil.copy(library.get_library_path(cache, kind), path)
    code = [out / programs.EMITTER, out / libocc.LIBOCC / "lib/libocc.so", *plugins.values()]
    subprocess.run(["strip", "--strip-debug", *map(str, code)], check=True)
    glibc = oldest_glibc(p.read_bytes() for p in code)
    index = {"machine": platform.machine(), "glibc": glibc, "entries": keys}
    (out / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return glibc


def oldest_glibc(code: Iterable[bytes]) -> str:
    """The oldest version of the C library that has all symbols which programs and libraries ask for."""
    found = {v for c in code for v in needed_versions(c)}
    numbers = [tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in found if re.fullmatch(r"GLIBC_[\d.]+", v)]
    return ".".join(map(str, max(numbers)[:2]))


def copied(out: Path) -> Path:
    """A copy of what git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, out / name, follow_symlinks=False)
    return out


def build(out: Path) -> Path:
    """Build the wheel into a folder.

    Raises:
        CalledProcessError: setuptools fails.
    """
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="occ-wheel-") as place:
        sources = copied(Path(place))
        glibc = compile_parts(sources / "compiler/prebuilt")
        tag = f"manylinux_{glibc.replace('.', '_')}_{platform.machine()}"
        options = {"--build-option": f"--plat-name {tag}"}
        code = f"import setuptools.build_meta as b; print(b.build_wheel({str(out)!r}, {options!r}))"
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=sources, env=env, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            sys.exit(ran.stdout + ran.stderr)
        return out / ran.stdout.split()[-1]


if __name__ == "__main__":
    made = build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist"))
    print(f"wrote {made}: {made.stat().st_size / 2**20:.1f} MiB")
