"""libonnxifi-occ.so, built by the C++ compiler of this machine, once, into the build cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import onnx

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest
from occ.compiler.codegen_halide.toolchain import Compiler, compiler, run_all
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.standalone.libocc import SHARED, SYSTEM, libocc, move_in, sources
from occ.runtime.version import occ_version

NAME = "libonnxifi-occ.so"
HEADER = "onnxifi.h"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-Wall", "-Wextra")
# Programs may have another C++ library, or none.
_ALONE = ("-static-libstdc++", "-static-libgcc", "-Wl,--version-script,exports.txt")
_EXPORTS = "{ global: onnx*; local: *; };"
_OLDEST_IR = 3


def onnxifi_sources() -> dict[str, str]:
    """The files of runtime/onnxifi, by name."""
    folder = files("occ.runtime").joinpath("onnxifi")
    return {p.name: p.read_text("utf-8") for p in sorted(folder.iterdir(), key=lambda p: p.name)}


def build_facts() -> str:
    """A header that describes the compiler that the library belongs to."""
    command = [sys.executable, "-m", "occ.cli", "onnxifi"]
    identity = source_digest("occ")
    versions = " ".join(map(str, range(_OLDEST_IR, onnx.IR_VERSION + 1)))
    return f"""#pragma once
namespace occ::onnxifi {{
constexpr const char *kCompilerCommand[] = {{{", ".join(map(json.dumps, command))}}};
constexpr const char *kIdentity = "{identity}";
constexpr const char *kRelease = "{occ_version()}-{identity[:12]}";
constexpr const char *kIrVersions = "{versions}";
constexpr const char *kOperatorSets = "{operator_sets()}";
}}
"""


def operator_sets() -> str:
    """The operator sets that models may import: `domain:newest`, with blanks between."""
    newest = {"": onnx.defs.onnx_opset_version()}
    for spec in builtin().values():
        if spec.domain and not spec.is_internal:
            newest[spec.domain] = max(spec.since, newest.get(spec.domain, 1))
    return " ".join(f"{d or 'ai.onnx'}:{v}" for d, v in sorted(newest.items()))


def onnxifi_library(cache: Cache) -> Path:
    """The path of the library; onnxifi.h is next to it.

    Raises:
        CompileError: OCC0401 there is no C++ compiler; OCC0403 it fails.
    """
    headers = {n: t for n, t in sources().items() if n.endswith(".h")}
    texts = {**headers, **onnxifi_sources(), "build_facts.h": build_facts(), "exports.txt": _EXPORTS}
    cxx, base = compiler(), libocc(cache)
    key = digest(["onnxifi", base.name, cxx.version, *FLAGS, *_ALONE, *texts, *texts.values()])
    made = cache.path("tool", key, ".onnxifi")
    if made.is_dir():
        return made / NAME
    with cache.turn(key), cache.workspace() as folder:
        if not made.is_dir():
            _install(Path(folder), texts, cxx, base)
            move_in(Path(folder) / "installed", made)
    return made / NAME


def _install(work: Path, texts: Mapping[str, str], cxx: Compiler, base: Path) -> None:
    for name, text in texts.items():
        (work / name).write_text(text)
    units = [n for n in texts if n.endswith(".cpp")]
    run_all([[*cxx.command, *FLAGS, "-I.", "-c", *units[k::2]] for k in range(2)], work)
    (work / "installed").mkdir()
    objects = [n.replace(".cpp", ".o") for n in units]
    archive = str(base / "lib/libocc.a")
    command = [*cxx.command, *SHARED, *_ALONE, "-Wl,-z,defs", f"-Wl,-soname,{NAME}", *objects, archive, *SYSTEM]
    run_all([[*command, "-o", f"installed/{NAME}"]], work)
    (work / "installed" / HEADER).write_text(texts[HEADER])
