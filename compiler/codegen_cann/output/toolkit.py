"""The CANN toolkit: `atc` compiles the device parts of an artifact, `.air` -> `.om`.

Results are stored in the build cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.diagnostics import error, shorten
from occ.runtime.artifact import Artifact
from occ.runtime.dataclass import dataclass
from occ.runtime.device_part import DevicePart
from occ.runtime.release import read_release

_IN_HOME = ("bin/atc", "compiler/bin/atc")  # under ASCEND_HOME_PATH
_ERROR = re.compile(r"^\[?E[A-Z0-9]\d{4}\b.*|.*\[ERROR\].*", re.MULTILINE)
# options of atc that single operators do not have
_OF_GRAPHS = (
    "mode", "framework", "model", "output", "soc_version", "input_shape", "input_format", "insert_op_conf",
    "fusion_switch_file", "dynamic_batch_size", "dynamic_image_size", "dynamic_dims", "modify_mixlist",
    "external_weight",
)  # fmt: skip
WEIGHTS = (
    "device/weight/"  # members with weights outside of compiled graphs, as atc writes them: in `weight` next to the .om
)
_SHOWN = 6  # lines of atc's output in a message


@dataclass(frozen=True)
class Toolkit:
    """An installed CANN toolkit.

    Attributes:
        atc: path of its compiler.
        release: from its `version.info`, or empty.
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
            "`atc`, the compiler of the CANN toolkit, is not in PATH: parts for the device cannot be compiled here",
            help="install the CANN toolkit and source its `set_env.sh`, or copy the output of"
            " `--emit air` to a machine that has it: `occ dump --stage atc` prints the command",
        )
    return Toolkit(atc, read_release(Path(atc), "compiler"))


def compile_parts(
    artifact: Artifact, cache: Cache, jobs: int = 1, progress: Callable[[str], None] = lambda _: None
) -> Artifact:
    """The artifact with every device part compiled.

    Args:
        artifact: of an Ascend target.
        cache: stores compiled parts; atc takes minutes for large ones.
        jobs: parts compiled at once.
        progress: called with the current activity.

    Raises:
        CompileError: OCC0404 no toolkit; OCC0405 atc fails.
    """
    parts = artifact.manifest.parts
    toolkit = find_toolkit() if parts else None
    if toolkit is None:
        return artifact

    def compile_one(part: DevicePart) -> dict[str, bytes]:
        progress(f"atc: {part.name}")
        if part.program:
            return _compile_operators(toolkit, part, artifact.files, cache)
        return _compile(toolkit, part, artifact.files, cache)

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        each = list(pool.map(compile_one, parts))
    compiled = {name: data for made in each for name, data in made.items()}
    outside = [[name for name in made if name.startswith(WEIGHTS)] for made in each]
    records = [
        replace(p, om=_folder(p) if p.program else p.beside, toolkit=toolkit.release, weight_files=sorted(files))
        for p, files in zip(parts, outside, strict=True)
    ]
    manifest = replace(artifact.manifest, parts=records)
    return replace(artifact, manifest=manifest, files={**artifact.files, **compiled})


def _folder(part: DevicePart) -> str:
    """The name prefix of the compiled operators of a part."""
    return part.air.removesuffix(".air") + "/"


def _compile(toolkit: Toolkit, part: DevicePart, files: Mapping[str, bytes], cache: Cache) -> dict[str, bytes]:
    """The compiled graph of a part, and the weights that it reads from files."""
    members = {name.rpartition("/")[2]: files[name] for name in (part.air, *part.files)}
    made = _run(toolkit, part.name, part.command[1:], members, cache)
    models = [data for name, data in made.items() if name.endswith(".om")]
    if len(models) != 1:
        raise error("OCC0405", f"`atc` gave {len(models)} files for part `{shorten(part.name, 60)}`, not 1")
    return {part.beside: models[0], **{WEIGHTS + name: data for name, data in made.items() if not name.endswith(".om")}}


def _compile_operators(
    toolkit: Toolkit, part: DevicePart, files: Mapping[str, bytes], cache: Cache
) -> dict[str, bytes]:
    """Models of the operators of a part; each distinct one is compiled once, whatever parts it is in."""
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
        for n, data in enumerate(_run(toolkit, part.name, command, members, cache).values()):
            made[f"{_folder(part)}{k:04}-{n}.om"] = data
    return made


def _kernel_flags(part: DevicePart) -> list[str]:
    """Flags of `atc` that select kernels, also for single operators."""
    return [a for a in part.command[1:] if a.partition("=")[0].removeprefix("--") not in _OF_GRAPHS]


def _run(
    toolkit: Toolkit, name: str, arguments: Sequence[str], members: Mapping[str, bytes], cache: Cache
) -> dict[str, bytes]:
    """The output of atc in a folder with some files: models, and weights next to them. It is cached.

    Raises:
        CompileError: OCC0405 it fails.
    """
    command = [toolkit.atc, *arguments]
    identity = (toolkit.atc, toolkit.release, *arguments, *(x for item in members.items() for x in item))
    key = digest(["atc", *identity])
    if (kept := _kept(key, cache)) is not None:
        return kept
    with cache.workspace() as folder:
        for member, data in members.items():
            (Path(folder) / member).write_bytes(data)
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        # With dynamic shapes, recent releases include the host's system and processor in the name.
        models = {p.name: p.read_bytes() for p in sorted(Path(folder).rglob("*.om"))}
        outside = {p.name: p.read_bytes() for p in sorted(Path(folder, "weight").glob("*")) if p.is_file()}
    if ran.returncode or not models:
        raise error(
            "OCC0405",
            f"`atc` failed on part `{shorten(name, 60)}` with exit code {ran.returncode}",
            notes=[*_words(ran.stdout + "\n" + ran.stderr), f"the command was: {shorten(' '.join(command), 600)}"],
            help="check the release of CANN, and that the operator package of this SoC is installed",
        )
    if len(models) == 1:
        _keep(key, {**models, **outside}, cache)
    return {**models, **outside}


def _keep(key: str, made: Mapping[str, bytes], cache: Cache) -> None:
    """Store files in the cache: each under its digest, and their list."""
    named = {name: digest(["atc", data]) for name, data in made.items()}
    for name, data in made.items():
        cache.put("device", named[name], data, ".om")
    cache.put("device", key, json.dumps(named).encode(), ".files")


def _kept(key: str, cache: Cache) -> dict[str, bytes] | None:
    """The files from the cache; None if one is missing."""
    if not cache.has("device", key, ".files"):
        return None
    named: dict[str, str] = json.loads(cache.path("device", key, ".files").read_bytes())
    if not all(cache.has("device", each, ".om") for each in named.values()):
        return None
    return {name: cache.path("device", each, ".om").read_bytes() for name, each in named.items()}


def _words(output: str) -> Sequence[str]:
    """The lines of atc's output that report errors, or its first ones."""
    told = [m.group().strip() for m in _ERROR.finditer(output)] or [
        line for line in output.splitlines() if line.strip()
    ]
    return [shorten(line.strip(), 300) for line in told[:_SHOWN]]
