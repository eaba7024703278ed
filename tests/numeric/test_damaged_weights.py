"""GGUF files and folders of safetensors that are damaged, hostile, or of a model that is not known: one error, before a build."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from architectures import config, write_folder, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import occ
from occ.compiler.frontend.architectures.gguf_container import ContainerError, read_container
from occ.compiler.frontend.onnx import read_file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("whole") / "model.gguf", "qwen2", "Q4_0", tie_word_embeddings=False)


def refused(path: Path, *said: str) -> None:
    """The message is one error of OCC0109 with a remedy."""
    with pytest.raises(occ.CompileError) as e:
        read_file(path)
    assert [d.code for d in e.value.diagnostics] == ["OCC0109"]
    assert all(s in str(e.value) for s in (*said, "help: "))


def test_the_container_is_read_as_the_package_reads_it(file: Path) -> None:
    ours, theirs = read_container(file), gguf.GGUFReader(file)
    assert {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")} == ours.metadata
    assert {t.name: (int(t.tensor_type), tuple(t.shape[::-1].tolist()), t.data_offset) for t in theirs.tensors} == {
        name: (t.kind, t.shape, t.start) for name, t in ours.tensors.items()
    }


def test_files_that_are_cut_off_say_so(file: Path, tmp_path: Path) -> None:
    whole, cut = file.read_bytes(), tmp_path / "cut.gguf"
    for size in (4, 7, 23, 24, 100, 1000, len(whole) // 2, len(whole) - 100):
        cut.write_bytes(whole[:size])
        refused(cut, "cut.gguf")
        with pytest.raises((occ.CompileError, occ.RunError)):
            occ.LanguageModel(cut)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_headers_with_other_bytes_are_read_or_refused(data: st.DataObject, file: Path, tmp_path: Path) -> None:
    changed, header = bytearray(file.read_bytes()), 1500
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, header))
        new = data.draw(st.sampled_from([b"\xff", b"\0", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x01", b"\x09\0\0\0"]))
        changed[at : at + len(new)] = new
    path = tmp_path / "changed.gguf"
    path.write_bytes(changed)
    codes = {"OCC0109"}
    try:
        read_file(path)
    except occ.CompileError as e:
        codes = {d.code for d in e.diagnostics}
    assert codes == {"OCC0109"}


def test_counts_beyond_the_file_are_no_work(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    head = b"GGUF" + struct.pack("<I", 3)
    array = head + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<I", 9)
    nested = struct.pack("<IQ", 9, 1) * 5000
    for data in (
        head + struct.pack("<QQ", 1 << 62, 0), head + struct.pack("<QQ", 0, 1 << 62), head + struct.pack("<QQQ", 0, 1, 1 << 63),
        array + struct.pack("<IQQ", 8, 2, 1 << 63) + b"\0" * 16, array + struct.pack("<IQQ", 8, 2, 1) + b"aa" + b"\0" * 6,
        array + struct.pack("<IQ", 0, 1 << 60), array + struct.pack("<IQ", 8, 1 << 60), array + nested + b"\0" * 60_000,
    ):  # fmt: skip
        path.write_bytes(data)
        refused(path)
        with pytest.raises(ContainerError):
            read_container(path)


def rewritten(file: Path, path: Path, *, key: dict[str, Any] | None = None, tensors: Any = None) -> Path:
    """The file with other metadata or tensors."""
    reader = gguf.GGUFReader(file)
    values = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")} | (key or {})
    writer = gguf.GGUFWriter(path, values.pop("general.architecture"))
    for k, v in values.items():
        if isinstance(v, str):
            writer.add_string(k, v)
        elif v is not None:
            (writer.add_float32 if isinstance(v, float) else writer.add_uint32)(k, v)
    found = {t.name: (np.array(t.data), t.tensor_type) for t in reader.tensors}
    for name, (data, kind) in (tensors or (lambda x: x))(found).items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ({"general.architecture": "mamba"}, "`mamba`"),
        ({"qwen2.block_count": None}, "`qwen2.block_count` is missing"),
        ({"qwen2.block_count": "two"}, "is two"),
        ({"qwen2.block_count": 4_000_000_000}, "4000000000"),
        ({"qwen2.block_count": 2_000_000_000}, "2000000000 layers"),
        ({"qwen2.block_count": 3}, "`blk.2.attn_q.weight`"),
        ({"qwen2.embedding_length": 128}, "[60, 64], not [60, 128]"),
        ({"qwen2.attention.layer_norm_rms_epsilon": float("nan")}, "nan"),
        ({"qwen2.rope.scaling.type": "spiral"}, "`spiral`"),
        ({"qwen2.expert_count": 8}, "experts"),
    ],
)
def test_metadata_that_make_no_sense_are_named(key: dict[str, Any], said: str, file: Path, tmp_path: Path) -> None:
    refused(rewritten(file, tmp_path / "other.gguf", key=key), said)


def test_tensors_that_are_missing_or_odd_are_named(file: Path, tmp_path: Path) -> None:
    odd = (np.zeros((4, 4), np.float32), gguf.GGMLQuantizationType.F32)
    for change, said in (
        (lambda x: {k: v for k, v in x.items() if k != "blk.1.ffn_up.weight"}, "no tensor `blk.1.ffn_up.weight`"),
        (lambda x: x | {"blk.0.attn_norm.weight": odd}, "`blk.0.attn_norm.weight` has shape [4, 4], not [64]"),
        (lambda x: x | {"blk.0.adapter.weight": odd}, "`blk.0.adapter.weight`, which"),
    ):
        refused(rewritten(file, tmp_path / "other.gguf", tensors=change), said)


def test_types_that_are_not_known_are_named(file: Path, tmp_path: Path) -> None:
    whole, name = file.read_bytes(), b"blk.0.ffn_up.weight"
    at = whole.index(name) + len(name) + 4 + 16
    path = tmp_path / "other.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", 77) + whole[at + 4 :])
    refused(path, "`blk.0.ffn_up.weight` has the type 77")


def test_one_part_of_several_is_refused(file: Path, tmp_path: Path) -> None:
    path = rewritten(file, tmp_path / "other.gguf", key={"split.count": 3})
    with pytest.raises(occ.RunError, match="one of 3 parts"):
        occ.LanguageModel(path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "bert"}, "`bert`"),
        ({"vision_config": {}}, "images"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"num_hidden_layers": None}, "`num_hidden_layers` of config.json is missing"),
        ({"num_hidden_layers": 2_000_000_000}, "2000000000 layers"),
        ({"num_hidden_layers": 3}, "`blk.2.attn_q.weight`"),
        ({"hidden_size": "wide"}, "wide"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "`dynamic`"),
        ({"hidden_act": "relu"}, "`relu`"),
    ],
)
def test_configurations_that_make_no_sense_are_named(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_folder(tmp_path, "llama")
    (tmp_path / "config.json").write_text(json.dumps(config("llama") | changed))
    refused(tmp_path / "model.safetensors", said)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, "llama", shards=2)
    index = tmp_path / "model.safetensors.index.json"
    part = tmp_path / "model-00001-of-00002.safetensors"
    whole = part.read_bytes()
    for data, said in ((whole[: len(whole) // 2], "damaged"), (b"\xff" * 64, "damaged"), (b"", "damaged")):
        part.write_bytes(data)
        refused(index, said)
    part.unlink()
    refused(index, "is missing")
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    refused(index, "is missing")
    (tmp_path / "config.json").unlink()
    refused(index, "config.json")
