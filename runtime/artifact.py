"""Artifacts: a zip of stored members, or the same tree in a folder.

`manifest.json`, `weights.bin` (each weight aligned to 64 bytes; mapped, not read), `kernels/model.so`, and what is only
for people: `src/` (the generated sources) and `ir/<stage>.occ`. Equal builds give equal bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from occ.runtime.buffers import ALIGNMENT
from occ.runtime.device import Device, DeviceEngine, Island
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest, WeightInfo
from occ.runtime.mapped import release
from occ.runtime.native.engine import NativeEngine, Specialise
from occ.runtime.session import Session
from occ.runtime.threads import thread_count

MANIFEST, WEIGHTS, LIBRARY = "manifest.json", "weights.bin", "kernels/model.so"
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip can name
_PADDING_ID = 0xD935  # extra field for alignment, as Android's zipalign writes it


@dataclass
class Artifact:
    """What a build gives.

    Attributes:
        manifest: signature, plan and facts.
        weights: constants in the order of the manifest.
        code: the shared library with the kernels, or nothing.
        files: further members, by path.
    """

    manifest: Manifest
    weights: Sequence[np.ndarray]
    code: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)

    def session(
        self,
        threads: int | None = None,
        *,
        specialise: Specialise | None = None,
        device: Device | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Session:
        """A session that runs the native code of the artifact, or its parts on an accelerator.

        Args:
            threads: of one run; OCC_NUM_THREADS or all processors if None.
            specialise: compiles ops that wait for their operands; without it they are an error.
            device: what runs the device parts; the accelerator of this machine by default.
            options: of the session on an accelerator, see `occ.runtime.acl.options`.

        Raises:
            RunError: the artifact needs the compiler, its code does not load, or there is no accelerator.
        """
        if self.manifest.engine == "ascend":
            return self._on_device(threads, specialise, device, options or {})
        if options:
            raise RunError("OCC0501", f"sessions of `{self.manifest.target}` have no option `{next(iter(options))}`")
        if self.manifest.engine != "native":
            raise RunError(
                "OCC0502", f"an artifact for `{self.manifest.target}` needs the compiler to run", "use `occ.load`"
            )
        count = thread_count(threads)
        arrays = [np.ascontiguousarray(w) for w in self.weights]
        return Session(self, NativeEngine(self.manifest, arrays, self.code, count, specialise, self.files), count)

    def _on_device(
        self, threads: int | None, specialise: Specialise | None, device: Device | None, options: Mapping[str, Any]
    ) -> Session:
        islands: dict[str, Island] = {}
        for name in self.manifest.islands:
            made = self.island(name)
            islands[name] = Island(made.manifest, made.session(threads, specialise=specialise).engine)
        if device is None:
            from occ.runtime.acl.ascend import AscendDevice
            from occ.runtime.acl.options import Options

            device = AscendDevice(Options.read(self.manifest.options, options))
        return Session(
            self, DeviceEngine(self.manifest, self.weights, self.files, device, islands), thread_count(threads)
        )

    def island(self, name: str) -> Artifact:
        """The artifact of an island: a part that the CPU takes, in `islands/NAME/`.

        Raises:
            RunError: OCC0502 it is missing or damaged.
        """
        return self._read(_Nested(self.files, f"islands/{name}/"), Path(f"islands/{name}"))

    # writing

    def members(self) -> dict[str, bytes]:
        """All members, by path: what `save` writes."""
        data = b"".join(bytes(p) for p in self._weight_pieces())
        return {
            **dict(self._small_members()),
            WEIGHTS: data,
            MANIFEST: self._manifest_text(_sha256(self._weight_pieces())).encode(),
        }

    def save(self, path: str | os.PathLike[str], *, folder: bool = False) -> Path:
        """Write the artifact under a temporary name and move it into place; a failure leaves nothing behind.

        Args:
            path: of the artifact.
            folder: write a folder instead of a zip.

        Raises:
            OSError: the path cannot be written.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if folder:
            self._save_folder(target)
        else:
            self._save_zip(target)
        return target

    def _save_zip(self, target: Path) -> None:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:60]}.", suffix=".tmp", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
                for member, data in self._small_members():
                    z.writestr(_info(member, len(data)), data)
                digest = self._write_weights(z)
                z.writestr(_info(MANIFEST), self._manifest_text(digest))
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
            with open(made / WEIGHTS, "wb") as f:
                f.writelines(self._weight_pieces())
            (made / MANIFEST).write_text(self._manifest_text(_sha256(self._weight_pieces())))
            made.chmod(0o755)
            _replace_folder(made, target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise

    def _small_members(self) -> Iterator[tuple[str, bytes]]:
        if self.code:
            yield LIBRARY, self.code
        yield from sorted(self.files.items())

    def _write_weights(self, z: zipfile.ZipFile) -> str:
        size = sum(map(len, self._weight_pieces()))
        assert z.fp is not None
        with ThreadPoolExecutor(1) as other:  # hashing takes as long as writing, and neither holds the interpreter
            digest = other.submit(lambda: _sha256(self._weight_pieces()))
            with z.open(_info(WEIGHTS, size, at=z.fp.tell()), "w", force_zip64=size >= 2**31 - 1) as f:
                for piece in self._weight_pieces():
                    f.write(piece)
            return digest.result()

    def _weight_pieces(self) -> Iterator[memoryview]:
        end = 0
        for info, w in zip(self.manifest.weights, self.weights, strict=True):
            if info.offset > end:
                yield memoryview(bytes(info.offset - end))
            yield np.ascontiguousarray(w).reshape(-1).view(np.uint8).data
            end = info.offset + info.nbytes
            release([w])  # or writing would bring all weights into memory

    def _manifest_text(self, weights_digest: str) -> str:
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self._small_members()}
        return replace(self.manifest, digests={**digests, WEIGHTS: weights_digest}).to_json()

    # reading

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Artifact:
        """Read an artifact; weights are mapped, not read.

        Raises:
            RunError: OCC0502 it is missing, damaged or of another format.
        """
        source = Path(path)
        return cls._read(_Folder(source) if source.is_dir() else _Zip(source), source)

    @classmethod
    def _read(cls, members: _Folder | _Zip | _Nested, source: Path) -> Artifact:
        for name in members.names():
            if not _is_plain(name):
                raise RunError("OCC0502", f"a member of `{source}` has the path `{name!a}`, which leaves the artifact")
        manifest = Manifest.from_json(members.read(MANIFEST))
        data = members.map(WEIGHTS) if manifest.weights else np.empty(0, np.uint8)
        end = max((w.offset + w.nbytes for w in manifest.weights), default=0)
        if data.size < end:
            raise RunError("OCC0502", f"`{WEIGHTS}` of `{source}` is cut off", "build the artifact again")
        weights = [data[w.offset : w.offset + w.nbytes] for w in manifest.weights]
        code = members.read(LIBRARY) if manifest.library else b""
        made = cls(manifest, weights, code, members.others())
        late = {p.beside for p in manifest.parts if not p.om}  # compiled in the folder of the artifact, after the build
        for name, data in made._small_members():
            if name not in late:
                made._compare(name, [data])
        return made

    def verify(self) -> None:
        """Compare the weights with their digest, which loading does not do, because it would read them all.

        Raises:
            RunError: OCC0502 they have changed.
        """
        self._compare(WEIGHTS, self._weight_pieces())

    def _compare(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        if self.manifest.digests.get(name) != _sha256(pieces):
            raise RunError("OCC0502", f"`{name}` of the artifact does not have its digest", "build the artifact again")


def _sha256(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def weight_infos(names: Sequence[str], sizes: Sequence[int]) -> list[WeightInfo]:
    """Where weights lie in the weights file: in order, aligned."""
    infos: list[WeightInfo] = []
    end = 0
    for name, size in zip(names, sizes, strict=True):
        start = -(-end // ALIGNMENT) * ALIGNMENT
        infos.append(WeightInfo(name, start, size))
        end = start + size
    return infos


def _info(name: str, size: int = 0, at: int | None = None) -> zipfile.ZipInfo:
    """A stored member; with `at`, the offset of its header, its data are aligned."""
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
    """Put a finished folder in place; an old artifact of that name goes away, any other folder is not touched."""
    if target.is_dir() and any(target.iterdir()):
        if not (target / MANIFEST).is_file():
            raise FileExistsError(17, "the folder exists and is not an artifact", str(target))
        old = Path(tempfile.mkdtemp(prefix=".old.", suffix=".tmp", dir=target.parent))
        os.replace(target, old / "artifact")
        os.replace(made, target)
        shutil.rmtree(old, ignore_errors=True)
        return
    os.replace(made, target)


def _is_plain(name: str) -> bool:
    """Whether the path of a member stays inside of the artifact, on every system."""
    return not re.search(r"[\\:\0]", name) and all(part not in ("", ".", "..") for part in name.split("/"))


class _Folder:
    """Members of an artifact that is a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes:
        return self._find(name).read_bytes()

    def map(self, name: str) -> np.ndarray:
        found = self._find(name)
        return np.memmap(found, np.uint8, "r").view(np.ndarray) if found.stat().st_size else np.empty(0, np.uint8)

    def names(self) -> list[str]:
        """Paths of the files, in order; that of a link is where it leads."""
        root = self.path.resolve()
        found = sorted(p for p in self.path.rglob("*") if p.is_file())
        return [p.relative_to(self.path).as_posix() if _leads_inside(p, root) else str(p.resolve()) for p in found]

    def others(self) -> dict[str, bytes]:
        return {n: (self.path / n).read_bytes() for n in self.names() if n not in (MANIFEST, WEIGHTS, LIBRARY)}

    def _find(self, name: str) -> Path:
        found = self.path / name
        if not found.is_file():
            raise RunError("OCC0502", f"`{name}` is missing in the artifact `{self.path}`", "build the artifact again")
        return found


def _leads_inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root)


class _Nested:
    """Members of an artifact that lies in another one."""

    def __init__(self, files: Mapping[str, bytes], prefix: str) -> None:
        self.files = {n.removeprefix(prefix): data for n, data in files.items() if n.startswith(prefix)}
        self.prefix = prefix

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise RunError("OCC0502", f"`{self.prefix}{name}` is missing in the artifact", "build the artifact again")
        return self.files[name]

    def map(self, name: str) -> np.ndarray:
        return np.frombuffer(self.read(name), np.uint8)

    def others(self) -> dict[str, bytes]:
        return {n: data for n, data in sorted(self.files.items()) if n not in (MANIFEST, WEIGHTS, LIBRARY)}


class _Zip:
    """Members of an artifact that is a zip."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as z:
                self.infos = {i.filename: i for i in z.infolist()}
        except FileNotFoundError:
            raise RunError("OCC0502", f"`{path}` does not exist") from None
        except (OSError, zipfile.BadZipFile) as e:
            raise RunError("OCC0502", f"`{path}` is not an artifact: {e}", "build the artifact again") from None

    def read(self, name: str) -> bytes:
        self._find(name)
        try:
            with zipfile.ZipFile(self.path) as z:
                return z.read(name)
        except (OSError, zipfile.BadZipFile) as e:
            raise RunError(
                "OCC0502", f"`{name}` in `{self.path}` is damaged: {e}", "build the artifact again"
            ) from None

    def map(self, name: str) -> np.ndarray:
        info = self._find(name)
        with open(self.path, "rb") as f:
            f.seek(info.header_offset + 26)
            start = info.header_offset + 30 + sum(struct.unpack("<HH", f.read(4)))
        if start + info.file_size > self.path.stat().st_size or info.compress_type != zipfile.ZIP_STORED:
            raise RunError("OCC0502", f"`{name}` in `{self.path}` is damaged", "build the artifact again")
        if info.file_size == 0:
            return np.empty(0, np.uint8)
        return np.memmap(self.path, np.uint8, "r", start, (info.file_size,)).view(np.ndarray)

    def names(self) -> list[str]:
        """Paths of the members, in order; the folders that some tools add are none."""
        return sorted(n for n in self.infos if not n.endswith("/"))

    def others(self) -> dict[str, bytes]:
        return {n: self.read(n) for n in self.names() if n not in (MANIFEST, WEIGHTS, LIBRARY)}

    def _find(self, name: str) -> zipfile.ZipInfo:
        if name not in self.infos:
            raise RunError("OCC0502", f"`{name}` is missing in the artifact `{self.path}`", "build the artifact again")
        return self.infos[name]


def load(path: str | os.PathLike[str], threads: int | None = None) -> Session:
    """Load an artifact to run it.

    Args:
        path: of the artifact.
        threads: of one run; OCC_NUM_THREADS or all processors if None.

    Raises:
        RunError: OCC0502 the artifact cannot be used.
    """
    return Artifact.load(path).session(threads)
