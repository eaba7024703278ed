"""Reuse of an unchanged artifact from the cache by `occ build`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from os.path import isfile
from pathlib import Path
from typing import Any

from occ.cli.options import Flags, project_rules
from occ.compiler.cache.artifact_cache import ArtifactCache, Request
from occ.compiler.cache.cache import Cache
from occ.compiler.cache.file_stamps import Stamps
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class ArtifactReuse:
    """The artifact of an equal earlier build, reused from the cache."""

    cache: ArtifactCache
    request: Request

    @classmethod
    def of(cls, model: str, target: str, save_stages: bool, flags: Flags) -> ArtifactReuse | None:
        """The cache entry of a build; None if the build reads inputs outside of the key."""
        if flags.no_cache or flags.verify or flags.rules or project_rules():
            return None
        if not model.endswith(".onnx") or not Path(model).is_file():
            return None
        files = {
            value: sha256(Path(value).read_bytes()).hexdigest()
            for value in flags.target_options.values()
            if isfile(value)  # unlike `Path.is_file`, it accepts texts of any length
        }
        deciding = {"shapes": flags.shapes, "dims": flags.dims, "options": flags.target_options, "files": files}
        cache = Cache()
        how = {"target": target, "save_stages": save_stages, **deciding}
        return cls(ArtifactCache(cache), Request(Path(model), how, Stamps(cache)))

    def copied(self, place: Path) -> dict[str, Any] | None:
        """Write the artifact of an earlier build; returns its facts, or None if there is none.

        Raises:
            OSError: the path cannot be written.
        """
        found = self.cache.find(self.request)
        if found is None or not found.copy_to(place):
            return None
        return {
            **found.facts,
            "out": str(place),
            "compiled": 0,
            "reused": found.facts.get("kernels", 0),
            "phases": {},
            "unchanged": True,
        }

    def keep(self, place: Path, files: Iterable[Path], facts: Mapping[str, Any]) -> str:
        """Store an artifact that was just written, for the next build.

        Returns why it is not stored, empty if it is.
        """
        return self.cache.keep(self.request, place, files, facts)
