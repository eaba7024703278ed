"""A slice of the fuzzer of files: fixed seeds of each kind. Everything is taken, or refused with a diagnostic."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import weakref
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import parsed
from tools.fuzz import files, kinds, mutate
from tools.fuzz.campaign import campaign, counts

KINDS = ("external", "libraries")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused(kind: str, tmp_path: Path) -> None:
    made = campaign(
        files.Files(kind, 40, tmp_path), tmp_path / "s.json", [range(1, 4)], float("inf"), lambda *_: None, 90
    )
    print(counts(made))
    assert not made.faults, counts(made)
    assert made.cases.total() > 40


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_changes_of_a_seed_are_always_the_same(kind: str) -> None:
    first, second = (kinds.KINDS[kind](np.random.default_rng(3), 5) for _ in range(2))
    assert [next(first).data for _ in range(5)] == [next(second).data for _ in range(5)]


def test_process_says_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed of many cases takes longer than a campaign waits for a word."""
    monkeypatch.setattr(files, "SILENT", 0.0)
    monkeypatch.setitem(kinds.KINDS, "nothing", lambda *_: repeat(kinds.Attempt(b"", lambda _: None)))
    said: list[dict[str, object]] = []
    files.Files("nothing", 5, tmp_path)._seed(1, said.append)
    assert said.count({"seed": 1}) == 5


def test_case_at_which_a_process_ends_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(rng: np.random.Generator, seed: int) -> Iterator[kinds.Attempt]:
        for k in range(9):
            yield kinds.Attempt(b"", lambda _, k=k: os.kill(os.getpid(), signal.SIGKILL) if k == 6 else None)

    monkeypatch.setitem(kinds.KINDS, "ends", ends)
    work = files.Files("ends", 9, tmp_path)
    made = campaign(work, tmp_path / "s.json", [range(4, 5)], float("inf"), lambda *_: None, 90, work.where)
    assert made.faults["the process ended with SIGKILL"]["case"] == "ends-4-6"


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    def tried(use: kinds.Try) -> str:
        return files.tried(kinds.Attempt(b"", use), tmp_path)[1]

    def fails(_: Path) -> None:
        raise KeyError("x")

    def escapes(_: Path) -> None:
        Path("/etc/hostname").read_text()

    def is_refused(_: Path) -> None:
        Compilation(b"no model", Settings("interp", cache=False))

    assert [tried(u) for u in (lambda _: None, fails, escapes, is_refused)] == ["taken", "raised", "raised", "refused"]


def test_finalizers_do_not_run_while_files_are_watched(tmp_path: Path) -> None:
    """Where they remove a folder, they open it: pytest took that for a failure of the test which ran then."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "empty").mkdir()

    class Circle:
        def __init__(self) -> None:
            self.itself = self
            weakref.finalize(self, shutil.rmtree, tmp_path / "a")

    def fill(_: Path) -> None:
        Circle()
        for _k in range(200_000):
            circle: list[object] = []
            circle.append(circle)

    assert files.tried(kinds.Attempt(b"", fill), tmp_path / "empty")[1] == "taken"
    gc.collect()
    assert not (tmp_path / "a").exists()


def test_messages_change_at_any_depth() -> None:
    model = kinds.small(3).model
    rng = np.random.default_rng(0)
    seen = set[bytes]()
    for _ in range(200):
        made = ModelProto()
        made.CopyFrom(model)
        mutate.message(rng, made)
        seen.add(made.SerializeToString())
    assert len(seen) > 150


@pytest.mark.parametrize("text", ["dense<1.0, 2.0>", "dense<300, 1, 2>"])
def test_weight_of_a_text_that_does_not_fit_its_type(text: str) -> None:
    source = f'module @m {{stage="inferred"}} {{\n  weight @w : u8[3] = {text}\n  func @main() -> u8[3] as "y" {{\n    return @w\n  }}\n}}\n'
    with pytest.raises(CompileError, match="OCC0601"):
        parsed(source)


@pytest.mark.parametrize("location", ["a" * 300, "circle"])
def test_external_data_that_no_file_can_be(location: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("Neg", ["w"], ["y"])], "g", [], [helper.make_empty_tensor_value_info("y")], [tensor]
    )
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(CompileError, match="OCC0106"):
        Compilation(tmp_path / "m.onnx", Settings("interp", cache=False))


NAMES: dict[str, Callable[[ModelProto], object]] = {
    "operator": lambda m: setattr(m.graph.node[0], "op_type", "Neg!"),
    "operand": lambda m: m.graph.node[0].input.__setitem__(0, "x!"),
    "node": lambda m: setattr(m.graph.node[0], "name", "n!"),
    "dim": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "d!"),
    "attribute": lambda m: m.graph.node[0].attribute.add(name="a!"),
    "domain": lambda m: setattr(m.opset_import[0], "domain", "o!"),
}


@pytest.mark.parametrize("place", NAMES)
def test_name_that_is_not_utf8(place: str) -> None:
    """protobuf hands such a string over as bytes."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    model = helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ends[:1], ends[1:]))
    NAMES[place](model)
    data = model.SerializeToString().replace(b"!", b"\xff")
    with pytest.raises(CompileError, match="is not UTF-8"):
        Compilation(data, Settings("interp", cache=False))
