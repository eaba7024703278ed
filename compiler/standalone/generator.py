"""A model as a folder of C++ sources that make and CMake build without occ."""

from __future__ import annotations

from pathlib import Path

from occ.compiler.native_entry.read_routines import without_host
from occ.compiler.standalone.libocc import PUBLIC, sources
from occ.compiler.standalone.ports import Ports, glue, header, identifier
from occ.compiler.standalone.program import HEADERS, check_one_machine, write_weights
from occ.runtime.artifact import Artifact

_RESERVED = (
    *HEADERS,
    "all",
    "clean",
    "help",
    "install",
    "test",
    "package",
)  # names that CMake does not allow for a target
_RUNTIME = "runtime.cpp"  # the part of libocc that kernels need; with all of libocc it would be included twice
# Symbols with the same name in all models. A program may be linked with several.
_MAP = "{ local: occ_model_run; occ_model_facts; };\n"


def write_generator(artifact: Artifact, folder: Path, stem: str) -> bool:
    """Write the folder.

    Args:
        artifact: the model, of a target that has sources.
        folder: destination.
        stem: name of the model.

    Returns:
        Returns whether there was anything to write. If the plan has no native entry, the folder only has the kernels.

    Raises:
        CompileError: OCC0603 it is for several machines.
    """
    check_one_machine(artifact)
    files = {n.removeprefix("src/"): data for n, data in artifact.files.items() if n.startswith("src/")}
    if not files:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    if "entry.ll" in files and not without_host(artifact.manifest):
        del files[_RUNTIME]
        files |= _program(artifact, folder, identifier(stem, _RESERVED))
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return True


def _program(artifact: Artifact, folder: Path, name: str) -> dict[str, bytes]:
    """The source files of a model, by path; the weights are written immediately."""
    weights = f"{name}.weights" if artifact.manifest.weights else ""
    ports, size, digest = Ports.of(artifact.manifest, name), 0, ""
    if weights:
        digest, size = write_weights(artifact, folder / weights)
    link = f"target_link_libraries(PROGRAM {name})   # in CMake, after add_subdirectory(of this folder)"
    texts = {
        f"{name}.h": header(ports, link=link, weights=weights, producer=artifact.manifest.producer),
        "model.cpp": glue(ports, digest=digest, size=size, embedded=""),
        "model.cmake": f"set(model {name})\n",
        "model.map": _MAP,
        **{f"libocc/{n}": text for n, text in sources().items() if n.endswith((".cpp", ".h")) or n in PUBLIC},
    }
    return {n: text.encode() for n, text in texts.items()}
