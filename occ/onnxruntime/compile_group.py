"""Compiles a group of nodes into the build cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError
from occ.onnxruntime import policy
from occ.runtime.errors import RunError


def compile_group(
    model: ModelProto, data: bytes, key: str, cache: Cache, target: str, options: Mapping[str, Any]
) -> str:
    """Compile a group into the cache; returns why that is not possible."""
    from occ.api import build

    try:
        with cache.workspace() as folder:
            made = Path(folder) / "group.occ"
            artifact = build(data, target, made, options=options)
            if policy.takes_fewer_sizes(artifact.manifest, model.graph.input):
                cache.put("group", key, data, ".onnx")
            cache.adopt("group", key, made, ".occ")
    except (CompileError, RunError) as e:
        return str(e)
    except Exception as e:  # a bug in the compiler must not fail a session
        return f"{type(e).__name__}: {e}"
    return ""
