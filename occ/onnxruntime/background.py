"""Background compilation of node groups, while onnxruntime runs them.

The process continues when its parent ends.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

from occ import background
from occ.compiler.cache.cache import Cache

WAYS = ("wait", "background", "never")
REFUSED = ".refused"  # cached reason why such a process could not compile
REQUEST, MODEL = "request.json", "group.onnx"  # of the folder


def start(data: bytes, key: str, target: str, options: Mapping[str, Any]) -> None:
    """Start to compile a group of nodes for later sessions."""
    folder = Path(tempfile.mkdtemp(prefix="occ-group-"))
    (folder / REQUEST).write_text(json.dumps({"key": key, "target": target, "options": dict(options)}))
    (folder / MODEL).write_bytes(data)
    background.start([str(folder)], module=__name__, detached=True)


def main(name: str) -> None:
    """Compile the request in a folder, unless another process has."""
    from onnx import ModelProto

    from occ.onnxruntime.compile_group import compile_group

    folder = Path(name)
    asked, data = json.loads((folder / REQUEST).read_text()), (folder / MODEL).read_bytes()
    rmtree(folder)
    key, cache = asked["key"], Cache()
    with cache.turn(f"{key}-group"):
        if not cache.has("group", key, ".occ"):
            reason = compile_group(ModelProto.FromString(data), data, key, cache, asked["target"], asked["options"])
            if reason:
                cache.put("group", key, reason.encode(), REFUSED)
