"""Background compilation of node groups, while onnxruntime runs them.

The process goes on when its parent ends.

`python -m occ.onnxruntime.background FOLDER` compiles what a folder asks for, and removes the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from occ.compiler.cache.cache import Cache

WAYS = ("wait", "background", "never")
REFUSED = ".refused"  # what such a process could not compile: the reason, in the cache
REQUEST, MODEL = "request.json", "group.onnx"  # of the folder
_NICE = 10


def start(data: bytes, key: str, target: str, options: Mapping[str, Any]) -> None:
    """Begin to compile a group of nodes for the sessions to come."""
    folder = Path(tempfile.mkdtemp(prefix="occ-group-"))
    (folder / REQUEST).write_text(json.dumps({"key": key, "target": target, "options": dict(options)}))
    (folder / MODEL).write_bytes(data)
    command = [sys.executable, "-m", "occ.onnxruntime.background", str(folder)]
    quiet: Any = subprocess.DEVNULL
    subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def main(name: str) -> None:
    """Compile what a folder asks for, unless another process has."""
    from onnx import ModelProto

    from occ.onnxruntime.claims import compile_group

    folder = Path(name)
    asked, data = json.loads((folder / REQUEST).read_text()), (folder / MODEL).read_bytes()
    rmtree(folder)
    with suppress(OSError):
        os.nice(_NICE)
    key, cache = asked["key"], Cache()
    with cache.turn(f"{key}-group"):
        if not cache.has("group", key, ".occ"):
            reason = compile_group(ModelProto.FromString(data), data, key, cache, asked["target"], asked["options"])
            if reason:
                cache.put("group", key, reason.encode(), REFUSED)


if __name__ == "__main__":
    main(sys.argv[1])
