"""Artifacts: a zip, or the same files in a folder.

`manifest.json`, `weights.bin` (each weight aligned to 64 bytes; mapped, not read), `kernels/model.so`, and for people
`src/` (the generated sources) and `ir/<stage>.occ`. An artifact for several machines has further ones in
`machines/NAME/`, including weights only if they differ. Equal builds produce equal bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from occ.runtime.buffers import ALIGNMENT
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest, WeightInfo
from occ.runtime.mapped_arrays import in_huge_pages, release
from occ.runtime.members import ALSO, LIBRARY, MANIFEST, WEIGHTS, Members, Nested, Within, is_plain, members_of, others

_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip
_PADDING_ID = 0xD935  # extra field for alignment, as Android's zipalign writes it
# Names of what models are read from: none of their readers would expect an artifact.
_MODELS = {".onnx", ".ort", ".pt2", ".pb", ".gguf", ".safetensors"}
_LIBRARIES = {".a": "static", ".so": "shared"}  # by suffix, what `occ build --emit` writes


def check_name(path: Path) -> None:
    """Refuse to give an artifact the name of a model or of a library, by its suffix.

    Raises:
        RunError: OCC0605.
    """
    if path.suffix.lower() in _MODELS:
        raise RunError("OCC0605", f"`{path}` is the name of a model, not of an artifact", f"name it `{path.stem}.occ`")
    if (kind := _LIBRARIES.get(path.suffix.lower())) is not None:
        remedy = f"`occ build --emit {kind}` makes a library; or name it `{path.stem}.occ`"
        raise RunError("OCC0605", f"`{path}` is the name of a library, and an artifact is none", remedy)


@dataclass
class Artifact:
    """An artifact: manifest, weights and members.

    Attributes:
        manifest: signature, plan and facts.
        weights: constants in its order.
        code: the shared library with the kernels, or empty.
        files: further members, by path; those of a loaded artifact are read on demand.
        variants: the same model for further machines, those in `manifest.also`.
    """

    manifest: Manifest
    weights: Sequence[np.ndarray]
    code: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    variants: Sequence[Artifact] = ()

    def cpu_subgraph(self, name: str) -> Artifact:
        """The artifact of a CPU subgraph, in `cpu_subgraphs/NAME/`.

        Raises:
            RunError: OCC0502 it is missing or damaged.
        """
        return self._read(Nested(self.files, f"cpu_subgraphs/{name}/"), Path(f"cpu_subgraphs/{name}"))

    # writing

    def members(self) -> dict[str, bytes]:
        """All members, by path: the contents that `save` writes."""
        weights = {path: b"".join(map(bytes, a.weight_pieces())) for path, a in self._weight_files()}
        return {**dict(self._small_members()), **weights, MANIFEST: self._manifest_text().encode()}

    def save(self, path: str | os.PathLike[str], *, folder: bool = False) -> Path:
        """Write the artifact under a temporary name and move it into place; a failure leaves nothing behind.

        Args:
            path: of the artifact.
            folder: whether to write a folder instead of a zip.

        Raises:
            OSError: the path cannot be written.
            RunError: OCC0605 the name is that of a model or a library.
        """
        target = Path(path)
        check_name(target)
        if target.is_dir() and not folder:
            raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._save_folder(target) if folder else self._save_zip(target)
        except OSError as e:
            # Of a write, such as to a disk that is full, there is no name, and else it is that of the temporary file.
            raise OSError(e.errno, e.strerror or str(e), os.fspath(target)) from None
        return target

    def _save_zip(self, target: Path) -> None:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:60]}.", suffix=".tmp", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
                for member, data in self._small_members():
                    z.writestr(_info(member, len(data)), data)
                for member, artifact in self._weight_files():
                    artifact._write_weights(z, member)
                z.writestr(_info(MANIFEST), self._manifest_text())
            os.chmod(name, 0o644)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _save_folder(self, target: Path) -> None:
        made = Path(tempfile.mkdtemp(prefix=f".{target.name[:60]}.", suffix=".tmp", dir=target.parent))
        try:
            for member, data in self._small_members():
                (made / member).parent.mkdir(parents=True, exist_ok=True)
                (made / member).write_bytes(data)
            for member, artifact in self._weight_files():
                with open(made / member, "wb") as f:
                    f.writelines(in_huge_pages(artifact.weight_pieces()))
            (made / MANIFEST).write_text(self._manifest_text())
            made.chmod(0o755)
            _replace_folder(made, target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise

    def _small_members(self) -> Iterator[tuple[str, bytes]]:
        yield from self._own_members()
        for prefix, variant in self._prefixed():
            yield from ((prefix + name, data) for name, data in variant._own_members())
            yield prefix + MANIFEST, variant._manifest_text().encode()

    def _own_members(self) -> Iterator[tuple[str, bytes]]:
        if self.code:
            yield LIBRARY, self.code
        yield from ((name, self.files[name]) for name in sorted(self.files))  # one by one: all may exceed the memory

    def _prefixed(self) -> list[tuple[str, Artifact]]:
        """The variants, each with the folder of its members."""
        return [(f"{ALSO}/{v.manifest.machine}/", v) for v in self.variants]

    def _weight_files(self) -> Iterator[tuple[str, Artifact]]:
        """The files of weights, by path, with the artifacts whose weights they are."""
        yield WEIGHTS, self
        yield from ((p + WEIGHTS, v) for p, v in self._prefixed() if v._weights_digest != self._weights_digest)

    @cached_property
    def _weights_digest(self) -> str:
        return _sha256(self.weight_pieces())

    def _write_weights(self, z: zipfile.ZipFile, member: str) -> None:
        from concurrent.futures import ThreadPoolExecutor  # imported here, since running models does not need it

        size = sum(map(len, self.weight_pieces()))
        assert z.fp is not None
        with ThreadPoolExecutor(1) as other:  # hashing takes as long as writing, and neither holds the GIL
            digest = other.submit(lambda: self._weights_digest)
            with z.open(_info(member, size, at=z.fp.tell()), "w", force_zip64=size >= 2**31 - 1) as f:
                for piece in in_huge_pages(self.weight_pieces(), z.fp.tell()):
                    f.write(piece)
            digest.result()

    def weight_pieces(self) -> Iterator[memoryview]:
        """The weights file, part by part."""
        end = 0
        for info, w in zip(self.manifest.weights, self.weights, strict=True):
            if info.offset > end:
                yield memoryview(bytes(info.offset - end))
            yield np.ascontiguousarray(w).reshape(-1).view(np.uint8).data
            end = info.offset + info.nbytes
            release([w])  # otherwise writing would bring all weights into memory

    def _manifest_text(self) -> str:
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self._small_members()}
        also = [v.manifest.machine for v in self.variants]
        return replace(self.manifest, digests={**digests, WEIGHTS: self._weights_digest}, also=also).to_json()

    # reading

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Artifact:
        """Read an artifact; weights are mapped, not read.

        Raises:
            RunError: OCC0502 it is missing, damaged or of another format.
        """
        source = Path(path)
        return cls._read(members_of(source), source)

    @classmethod
    def _read(cls, members: Members, source: Path) -> Artifact:
        for name in members.names():
            if not is_plain(name):
                raise RunError("OCC0502", f"a member of `{source}` has the path `{name!a}`, which leaves the artifact")
        manifest = Manifest.from_json(members.read(MANIFEST))
        data = members.map(WEIGHTS) if manifest.weights else np.empty(0, np.uint8)
        end = max((w.offset + w.nbytes for w in manifest.weights), default=0)
        if data.size < end:
            raise RunError("OCC0502", f"`{WEIGHTS}` of `{source}` is cut off", "build the artifact again")
        weights = [data[w.offset : w.offset + w.nbytes] for w in manifest.weights]
        code = members.read(LIBRARY) if manifest.library else b""
        made = cls(manifest, weights, code, others(members))
        for machine in manifest.also:
            made.variants = [*made.variants, made._variant(members, machine, source)]
        if manifest.library:
            made._compare(LIBRARY, [code])
        late = {p.beside for p in manifest.parts if not p.om}  # compiled in the artifact's folder, after the build
        for name in made.files:
            if name not in late:
                made._compare(name, members.pieces(name))
        return made

    def _variant(self, members: Members, machine: str, source: Path) -> Artifact:
        if not is_plain(machine) or "/" in machine:
            raise RunError("OCC0502", f"`{source}` has code for `{machine!a}`, which is not a name of a machine")
        inner = Within(members, machine)
        self._compare(inner.prefix + MANIFEST, [inner.read(MANIFEST)])
        made = self._read(inner, source / ALSO / machine)
        if made.manifest.machine != machine or made.manifest.also:
            raise RunError(
                "OCC0502", f"the code of `{source}` for `{machine}` is for another machine", "build the artifact again"
            )
        return made

    def verify(self) -> None:
        """Compare the weights with their digest; loading does not, because it would read them all.

        Raises:
            RunError: OCC0502 they have changed.
        """
        self._compare(WEIGHTS, self.weight_pieces())
        for inner in (*map(self.cpu_subgraph, self.manifest.cpu_subgraphs), *self.variants):
            inner.verify()

    def _compare(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        if self.manifest.digests.get(name) != _sha256(pieces):
            raise RunError("OCC0502", f"`{name}` of the artifact does not match its digest", "build the artifact again")


def _sha256(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def weight_infos(names: Sequence[str], sizes: Sequence[int]) -> list[WeightInfo]:
    """Offsets of weights in the weights file: in order, aligned."""
    infos: list[WeightInfo] = []
    end = 0
    for name, size in zip(names, sizes, strict=True):
        start = -(-end // ALIGNMENT) * ALIGNMENT
        infos.append(WeightInfo(name, start, size))
        end = start + size
    return infos


def _info(name: str, size: int = 0, at: int | None = None) -> zipfile.ZipInfo:
    """A stored member; with `at`, the offset of its header, its data is aligned."""
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    info.create_system = 3
    info.file_size = size
    if at is not None:
        fixed = at + 30 + len(name) + 4 + (20 if size >= 2**31 - 1 else 0)
        gap = -fixed % ALIGNMENT
        info.extra = struct.pack("<HH", _PADDING_ID, gap) + bytes(gap)
    return info


def _replace_folder(made: Path, target: Path) -> None:
    """Move a finished folder into place; an old artifact of that name is removed, any other folder is not touched."""
    if target.is_dir() and any(target.iterdir()):
        if not (target / MANIFEST).is_file():
            raise FileExistsError(17, "the folder exists and is not an artifact", str(target))
        old = Path(tempfile.mkdtemp(prefix=".old.", suffix=".tmp", dir=target.parent))
        os.replace(target, old / "artifact")
        os.replace(made, target)
        shutil.rmtree(old, ignore_errors=True)
        return
    os.replace(made, target)
