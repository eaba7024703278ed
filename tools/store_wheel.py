"""`make store`: a wheel of kernels, with which machines without a C++ compiler build for `-t cpu`.

It has the kernels that usual networks need at -O2, and those of the examples, for x86-64-v3 and x86-64-v4. A run that was ended goes
on where it was, in build/store. Kernels are found by the version of Halide, which the wheel requires, and by what they compute, so
that a wheel of another version of occ does no harm, and may lack some.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from occ.compiler.cache.installed_store import PACKAGE, TARGETS
from occ.compiler.codegen_halide.toolchain import toolchain
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.tuning.common_nets import common_nets
from occ.compiler.tuning.warm import warm
from occ.runtime.version import occ_version

ROOT = Path(__file__).parents[1]
USUAL = ("x86-64-v4", "x86-64-v3")  # processors
_KINDS = (("kernel", "*.o"), ("tool", "*.o"))  # entries of the cache that a build without a compiler reads
_PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"
description = "Kernels of usual networks for occ, on machines without a C++ compiler"
dependencies = ["halide == {halide}"]

[tool.setuptools]
packages = ["{package}"]

[tool.setuptools.package-data]
{package} = ["**/*"]
"""


def sources() -> Iterator[tuple[str, Source]]:
    """The usual networks, and the examples."""
    yield from common_nets()
    yield from ((path.name, path) for path in sorted((ROOT / "examples").glob("*.onnx")))


def compile_kernels(cache: Path, models: Iterable[tuple[str, Source]], processors: Sequence[str]) -> None:
    """Compile the kernels of models for some processors into a cache.

    Raises:
        CompileError: a part of the toolchain is missing.
    """
    os.environ["OCC_CACHE_DIR"] = str(cache)
    listed = list(models)
    for name in processors:
        settings = Settings("cpu", options={"optimize": "2", "halide.target": PROCESSORS[name]})
        made = warm(listed, settings, progress=lambda text, name=name: print(f"{name}: {text}", flush=True))
        print(f"{name}: {made.text()}")


def copy_entries(cache: Path, package: Path, processors: Sequence[str]) -> int:
    """Make a package of what builds read of a cache; how many entries it has."""
    count = 0
    for kind, pattern in _KINDS:
        for entry in sorted((cache / kind).glob(f"*/{pattern}")):
            if entry.with_suffix(".ll").exists():  # the native entry of one model: LLVM makes it without a compiler
                continue
            place = package / entry.relative_to(cache)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(entry, place)
            shutil.copy(f"{entry}.sha256", f"{place}.sha256")
            count += 1
    (package / TARGETS).write_text(json.dumps([PROCESSORS[name] for name in processors]) + "\n")
    (package / "__init__.py").write_text('"""Kernels for occ: entries of its build cache."""\n')
    return count


def build(out: Path, cache: Path, models: Iterable[tuple[str, Source]], processors: Sequence[str] = USUAL) -> Path:
    """Compile kernels, and build the wheel of them into a folder.

    Raises:
        CompileError: a part of the toolchain is missing.
        CalledProcessError: setuptools fails.
    """
    compile_kernels(cache, models, processors)
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="occ-store-") as place:
        copy_entries(cache, Path(place, PACKAGE), processors)
        facts = {
            "name": PACKAGE.replace("_", "-"),
            "package": PACKAGE,
            "version": occ_version(),
            "halide": toolchain().halide_version,
        }
        Path(place, "pyproject.toml").write_text(_PROJECT.format(**facts))
        options = {"--build-option": "--plat-name manylinux_2_17_x86_64"}
        code = f"import setuptools.build_meta as b; print(b.build_wheel({str(out)!r}, {options!r}))"
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=place, env=env, capture_output=True, text=True, check=True
        )
        return out / ran.stdout.split()[-1]


if __name__ == "__main__":
    made = build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist", ROOT / "build/store", sources())
    print(f"wrote {made}: {made.stat().st_size / 2**20:.1f} MiB")
