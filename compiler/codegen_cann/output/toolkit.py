"""The CANN toolkit: `atc` compiles the device parts of an artifact, `.air` -> `.om`.

Results are kept in the build cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.diagnostics import error, shorten
from occ.runtime.artifact import Artifact
from occ.runtime.device_part import DevicePart
from occ.runtime.release import read_release

_IN_HOME = ("bin/atc", "compiler/bin/atc")  # under ASCEND_HOME_PATH
_ERROR = re.compile(r"^\[?E[A-Z0-9]\d{4}\b.*|.*\[ERROR\].*", re.MULTILINE)
# options of atc that a single operator has not
_OF_GRAPHS = (
    "mode", "framework", "model", "output", "soc_version", "input_shape", "input_format", "insert_op_conf", "fusion_switch_file",
    "dynamic_batch_size", "dynamic_image_size", "dynamic_dims", "modify_mixlist", "external_weight",
)  # fmt: skip
_SHOWN = 6  # lines of atc's output in a message


@dataclass(frozen=True)
class Toolkit:
    """A toolkit.

    Attributes:
        atc: path of its compiler.
        release: as its `version.info` says, or empty.
    """

    atc: str
    release: str


def find_toolkit() -> Toolkit:
    """The toolkit whose `atc` is in PATH, or under ASCEND_HOME_PATH.

    Raises:
        CompileError: OCC0404 there is none.
    """
    home = os.environ.get("ASCEND_HOME_PATH")
    candidates = [shutil.which("atc"), *(shutil.which(str(Path(home) / p)) for p in _IN_HOME if home)]
    atc = next(filter(None, candidates), None)
    if atc is None:
        raise error(
            "OCC0404",
            "`atc`, the compiler of the CANN toolkit, is not in PATH: the parts for the device cannot be compiled here",
            help="install the CANN toolkit and source its `set_env.sh`, or copy what `--emit air`"
            " writes to where it is: `occ dump --stage atc` prints the command",
        )
    return Toolkit(atc, read_release(Path(atc), "compiler"))


def compile_parts(
    artifact: Artifact, cache: Cache, jobs: int = 1, progress: Callable[[str], None] = lambda _: None
) -> Artifact:
    """The artifact with every device part compiled.

    Args:
        artifact: of an Ascend target.
        cache: keeps compiled parts; atc takes minutes for large ones.
        jobs: parts that are compiled at once.
        progress: called with what is being done.

    Raises:
        CompileError: OCC0404 no toolkit; OCC0405 atc fails.
    """
    parts = artifact.manifest.parts
    if outside := [a for p in parts for a in p.command if a in ("--external_weight=1", "--external_weight=2")]:
        help_ = "build with `--emit air` or `--dir`, and run the command of `occ dump --stage atc` there; or leave the option out"
        raise error(
            "OCC0603", f"`{outside[0]}` puts weights beside an .om; one inside of an artifact has none", help=help_
        )
    toolkit = find_toolkit() if parts else None
    if toolkit is None:
        return artifact

    def compile_one(part: DevicePart) -> dict[str, bytes]:
        progress(f"atc: {part.name}")
        if part.program:
            return _compile_operators(toolkit, part, artifact.files, cache)
        return {part.beside: _compile(toolkit, part, artifact.files, cache)}

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        compiled = {name: data for made in pool.map(compile_one, parts) for name, data in made.items()}
    records = [replace(p, om=_folder(p) if p.program else p.beside, toolkit=toolkit.release) for p in parts]
    manifest = replace(artifact.manifest, parts=records)
    return replace(artifact, manifest=manifest, files={**artifact.files, **compiled})


def _folder(part: DevicePart) -> str:
    """What the names of the compiled operators of a part begin with."""
    return part.air.removesuffix(".air") + "/"


def _compile(toolkit: Toolkit, part: DevicePart, files: Mapping[str, bytes], cache: Cache) -> bytes:
    members = {name.rpartition("/")[2]: files[name] for name in (part.air, *part.files)}
    made = _run(toolkit, part.name, part.command[1:], members, cache)
    if len(made) != 1:
        raise error("OCC0405", f"`atc` gave {len(made)} files for part `{shorten(part.name, 60)}`, not 1")
    return made[0]


def _compile_operators(
    toolkit: Toolkit, part: DevicePart, files: Mapping[str, bytes], cache: Cache
) -> dict[str, bytes]:
    """Models of the operators of a part; each different one is compiled once, whatever parts it is in."""
    made: dict[str, bytes] = {}
    flags = _kernel_flags(part)
    beside = {
        name: files[member]
        for member in part.files
        if (name := member.rpartition("/")[2]) in {f.partition("=")[2] for f in flags}
    }
    for k, entry in enumerate(json.loads(files[part.air.removesuffix(".air") + ".singleop.json"])):
        command = ["--singleop=op.json", "--output=.", f"--soc_version={part.soc}", *flags]
        members = {"op.json": json.dumps([entry]).encode(), **beside}
        for n, data in enumerate(_run(toolkit, part.name, command, members, cache)):
            made[f"{_folder(part)}{k:04}-{n}.om"] = data
    return made


def _kernel_flags(part: DevicePart) -> list[str]:
    """What a command says of kernels, which holds of one operator too."""
    return [a for a in part.command[1:] if a.partition("=")[0].removeprefix("--") not in _OF_GRAPHS]


def _run(
    toolkit: Toolkit, name: str, arguments: Sequence[str], members: Mapping[str, bytes], cache: Cache
) -> list[bytes]:
    """Call atc in a folder with some files; what it makes is kept.

    Raises:
        CompileError: OCC0405 it fails.
    """
    command = [toolkit.atc, *arguments]
    identity = (toolkit.atc, toolkit.release, *arguments, *(x for item in members.items() for x in item))
    key = digest(["atc", *identity])
    if cache.has("device", key, ".om"):
        return [cache.path("device", key, ".om").read_bytes()]
    with cache.workspace() as folder:
        for member, data in members.items():
            (Path(folder) / member).write_bytes(data)
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        # Recent releases put the system and the processor of the host into the name when shapes are dynamic.
        made = [p.read_bytes() for p in sorted(Path(folder).rglob("*.om"))]
    if ran.returncode or not made:
        raise error(
            "OCC0405",
            f"`atc` failed on part `{shorten(name, 60)}` with exit code {ran.returncode}",
            notes=[*_words(ran.stdout + "\n" + ran.stderr), f"the command was: {shorten(' '.join(command), 600)}"],
            help="check the release of CANN, and that the operator package of this SoC is installed",
        )
    if len(made) == 1:
        cache.put("device", key, made[0], ".om")
    return made


def _words(output: str) -> Sequence[str]:
    """The lines of atc's output that say what is wrong, or its first ones."""
    told = [m.group().strip() for m in _ERROR.finditer(output)] or [
        line for line in output.splitlines() if line.strip()
    ]
    return [shorten(line.strip(), 300) for line in told[:_SHOWN]]
