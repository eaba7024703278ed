"""Bindings to libascendcl.so. A failed call raises `RunError` with the driver's message."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from occ.runtime.acl.prototypes import LIBRARIES, PROTOTYPES
from occ.runtime.acl.statuses import HELPS, NAMES, diagnostic_code
from occ.runtime.errors import RunError
from occ.runtime.release import read_release

MAIN = "libascendcl.so"
OVERRIDE = "OCC_ASCENDCL"  # path of the library, if it is in none of the usual places
_ROOTS = (
    "/usr/local/Ascend/ascend-toolkit/latest",
    "/usr/local/Ascend/nnrt/latest",
    "/usr/local/Ascend/latest",
    "/usr/local/Ascend/cann",
)
_OTHER_SOC = "socVersion"  # the driver's text for an `.om` of another SoC, whose status is a general one
_LONGEST = 600  # characters of the driver's message that an error repeats


class AclError(RunError):
    """A call of AscendCL failed.

    Attributes:
        call: its name.
        status: its return value, 0 if the call has none and returned null.
    """

    def __init__(self, call: str, status: int, doing: str, detail: str) -> None:
        self.call, self.status = call, status
        what = f"{status} ({NAMES.get(status, 'unknown status')})" if status else "nothing"
        told = f"; the driver says: {detail}" if detail else ""
        code = "OCC0510" if _OTHER_SOC in detail else diagnostic_code(status)
        super().__init__(code, f"{doing} failed: `{call}` returned {what}{told}", HELPS.get(status, ""))


class Acl:
    """The loaded library. Calls release the interpreter lock while they run.

    Attributes:
        path: as it was opened.
        release: of its CANN, or empty.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        self._functions: dict[str, Any] = {}
        self._main = ctypes.CDLL(self.path)
        self.release = read_release(_location(self.path), "runtime")

    def _function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = self._resolve(name)
        return found

    def _resolve(self, name: str) -> Any:
        for dll in self._libraries(name):
            if hasattr(dll, name):
                function = getattr(dll, name)
                function.restype, function.argtypes = PROTOTYPES[name]
                return function
        raise RunError(
            "OCC0406", f"`{self.path}` has no `{name}`", "this CANN is too old, or a part of it is not installed"
        )

    def _libraries(self, name: str) -> Iterator[ctypes.CDLL]:
        yield self._main
        for prefix, library in LIBRARIES.items():
            if name.startswith(prefix):
                for place in (Path(self.path).parent / library, library):
                    try:
                        yield ctypes.CDLL(str(place))
                    except OSError:
                        continue

    def status(self, name: str, *args: Any) -> int:
        """Make a call that returns a status, and return the status."""
        return int(self._function(name)(*args))

    def call(self, name: str, *args: Any, doing: str) -> None:
        """Make a call that returns a status.

        Args:
            name: of the call.
            args: its arguments.
            doing: the user's intention, for the message.

        Raises:
            AclError: the status is not 0.
        """
        if status := self.status(name, *args):
            raise AclError(name, status, doing, self.recent_message())

    def make(self, name: str, *args: Any, doing: str) -> Any:
        """Make a call that returns a handle or a string.

        Raises:
            AclError: it is null.
        """
        value = self._function(name)(*args)
        if value is None:
            raise AclError(name, 0, doing, self.recent_message())
        return value

    def value(self, name: str, *args: Any) -> Any:
        """Make a call that returns a plain value, and no errors."""
        return self._function(name)(*args)

    def recent_message(self) -> str:
        """The driver's text about the last failure in this thread; reading it clears it."""
        try:
            text = self._function("aclGetRecentErrMsg")()
        except RunError:
            return ""
        words = " ".join((text or b"").decode("utf-8", "replace").split())
        clean = "".join(c if c.isprintable() else "?" for c in words)
        return clean if len(clean) <= _LONGEST else clean[:_LONGEST] + "..."


def _location(path: str) -> Path:
    """The path of a loaded library; one opened by name is somewhere on the loader's path."""
    if "/" in path:
        return Path(path)
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Path(path)
    return next((Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(f"/{path}")), Path(path))


def places() -> list[Path]:
    """Where the library is searched, in order; the loader's own search path comes last."""
    roots = [os.environ[k] for k in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if os.environ.get(k)]
    return [Path(r) / folder / MAIN for r in (*roots, *_ROOTS) for folder in ("lib64", "runtime/lib64")]


def load() -> Acl:
    """Find and load the library.

    Raises:
        RunError: OCC0406 it is not on this machine, or does not load.
    """
    if given := os.environ.get(OVERRIDE):
        return _open(given)
    found = next((p for p in places() if p.is_file()), None)
    try:
        return _open(found or MAIN)
    except RunError:
        if found is not None:
            raise
    raise RunError(
        "OCC0406",
        f"there is no `{MAIN}` on this machine: AscendCL, the runtime of CANN, is not installed",
        "install CANN (toolkit or nnrt) and source its `set_env.sh`; `occ run --simulate` needs neither",
    )


def _open(path: Path | str) -> Acl:
    try:
        return Acl(path)
    except OSError as e:
        raise RunError(
            "OCC0406", f"AscendCL does not load: {e}", "source the `set_env.sh` of CANN; check the driver"
        ) from None
