"""Sessions on native code of `cpu` for many models: each is lowered once, and kernels of all are compiled together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

from onnx import ModelProto

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.tuning.warm import warm
from occ.runtime.session import Session

Key = TypeVar("Key", bound=Hashable)


class NativeSessions:
    """Sessions of models by key, each of which is taken once.

    Args:
        models: the models.
        options: of `cpu`.
    """

    def __init__(self, models: Mapping[Key, ModelProto], options: Mapping[str, str]) -> None:
        self._settings = Settings("cpu", options=options)
        self._lowered: dict[Hashable, Compilation | CompileError] = {}
        keys = {str(key): key for key in models}
        done = warm(self._read(models), self._settings)
        self._lowered |= {keys[label]: problem for label, problem in done.refused.items()}

    def _read(self, models: Mapping[Key, ModelProto]) -> Iterator[tuple[str, Compilation]]:
        for key, model in models.items():
            try:
                made = Compilation(model, self._settings)
            except CompileError as e:
                self._lowered[key] = e
            else:
                self._lowered[key] = made
                yield str(key), made

    def session(self, key: Hashable) -> Session:
        """A session of one thread on the code of a model, which is then forgotten.

        Raises:
            CompileError: the model cannot be compiled. KeyError: there is none, or it was taken before.
        """
        found = self._lowered.pop(key)
        if isinstance(found, CompileError):
            raise found
        return open_compilation(found, 1)
