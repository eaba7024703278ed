"""Weights in files next to the model: where these may be, and the error for a missing one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ

X = np.arange(4, dtype=np.float32)


def save(path: Path, count: int = 3) -> Path:
    """A sum of weights, whose bytes are in `model.onnx.data`."""
    held = [numpy_helper.from_array(np.full(1024, k, np.float32)[:4], f"w{k}") for k in range(count)]
    nodes = [helper.make_node("Sum", ["x", *(w.name for w in held)], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    return path


def linked(store: Path, folder: Path) -> Path:
    """The model as caches of downloads have it: files by their content, and a folder of links to them."""
    folder.mkdir(parents=True)
    store.mkdir()
    save(store / "model.onnx")
    for name, blob in (("model.onnx", "4af1"), ("model.onnx.data", "9c02")):
        (store / name).rename(store / blob)
        (folder / name).symlink_to(store / blob)
    return folder / "model.onnx"


def test_links_to_files_that_lie_together_are_followed(tmp_path: Path) -> None:
    model = linked(tmp_path / "blobs", tmp_path / "snapshots" / "1" / "onnx")
    np.testing.assert_array_equal(occ.compile(model, "interp").run({"x": X})["y"], X + 3)


def test_links_to_other_places_are_refused(tmp_path: Path) -> None:
    model = linked(tmp_path / "blobs", tmp_path / "snapshots" / "1")
    (tmp_path / "secret").write_bytes(b"\0" * 1024)
    data = model.parent / "model.onnx.data"
    data.unlink()
    data.symlink_to(tmp_path / "secret")
    with pytest.raises(occ.CompileError, match="outside"):
        occ.compile(model, "interp")


@pytest.mark.parametrize("missing", [True, False])
def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path, missing: bool) -> None:
    model = save(tmp_path / "model.onnx", count=50)
    (tmp_path / "model.onnx.data").unlink()
    if not missing:
        (tmp_path / "model.onnx.data").symlink_to("/etc/hostname")
    with pytest.raises(occ.CompileError, match="is missing" if missing else "outside") as e:
        occ.compile(model, "interp")
    assert len(e.value.diagnostics) == 1


def test_data_that_git_lfs_has_not_fetched_are_one_error(tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx", count=50)
    (tmp_path / "model.onnx.data").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(occ.CompileError, match="is a git-lfs pointer") as e:
        occ.compile(model, "interp")
    assert len(e.value.diagnostics) == 1
    assert "git lfs pull" in str(e.value)
