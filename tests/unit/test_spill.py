"""Large constants in temporary files, and memory of mapped files that is given back."""

import ctypes
import mmap
import os
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from building import model_of

import occ
from occ.compiler.ir import spill_file
from occ.compiler.ir.module import Module
from occ.runtime import mapped_arrays
from occ.runtime.mapped_arrays import copy_in_huge_pages, in_huge_pages, mapped_file, read_ahead, release
from occ.runtime.open import used_whole

MIB = 1 << 20


def resident_files() -> int:
    """Bytes of mapped files in the memory of this process."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssFile"))
    return int(line.split()[1]) * 1024


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["f4", "i8", ml_dtypes.bfloat16, "bool"])
def test_large_weights_lie_in_a_file_and_stay_equal(dtype) -> None:
    m = Module("m")
    made = [np.random.default_rng(k).integers(0, 9, (3, MIB // 2)).astype(dtype) for k in range(3)]
    kept = [m.add_weight("w", a).data for a in made]
    for a, b in zip(made, kept, strict=True):
        assert mapped_file(b) is not None
        assert not b.flags.writeable
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    del m
    np.testing.assert_array_equal(made[0], kept[0])  # arrays outlive their module


def test_an_array_that_is_not_contiguous_and_one_larger_than_a_file(monkeypatch) -> None:
    monkeypatch.setattr(spill_file, "_SEGMENT", 4 * MIB)
    s = spill_file.SpillFile()
    large = np.arange(3 * MIB, dtype=np.int32).reshape(3, -1)
    kept = [s.keep(large.T), s.keep(large[:, ::2]), s.keep(large)]
    np.testing.assert_array_equal(kept[0], large.T)
    np.testing.assert_array_equal(kept[1], large[:, ::2])
    np.testing.assert_array_equal(kept[2], large)


def test_small_and_mapped_arrays_stay_where_they_are() -> None:
    s = spill_file.SpillFile()
    small = np.zeros(7, np.float32)
    assert s.keep(small) is small
    once = s.keep(np.zeros(MIB, np.float32))
    assert s.keep(once[1:]).base is not None
    assert np.shares_memory(s.keep(once[1:]), once)


def test_a_full_disk_is_no_error(monkeypatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    array = np.ones(MIB, np.float32)
    assert spill_file.SpillFile().keep(array) is array


def test_released_pages_are_no_memory_and_come_back() -> None:
    kept = spill_file.SpillFile().keep(np.arange(16 * MIB, dtype=np.float32))
    total = kept.sum(dtype=np.float64)
    before = resident_files()
    release([kept])
    assert before - resident_files() > 48 * MIB
    assert kept.sum(dtype=np.float64) == total


def test_release_leaves_what_is_written_or_in_no_file_alone() -> None:
    changed = mmap.mmap(-1, MIB)
    array = np.frombuffer(changed, np.uint8)
    array[:] = 7
    plain = np.ones(MIB, np.uint8)
    release([array, plain, plain[:0]])
    assert array.min() == 7
    assert plain.min() == 1


@pytest.mark.parametrize("start", [0, 64, 2 * MIB, 5 * MIB - 3])
def test_parts_for_huge_pages_end_where_pages_end(start) -> None:
    rng = np.random.default_rng(start)
    pieces = [rng.bytes(n) for n in (3, 0, 7 * MIB + 1, 64, 2 * MIB, MIB // 2)]
    parts = list(in_huge_pages(map(memoryview, pieces), start))
    assert b"".join(parts) == b"".join(pieces)
    ends = start + np.cumsum([len(p) for p in parts])
    assert not (ends[:-1] % (2 * MIB)).any()
    assert max(map(len, parts)) == 2 * MIB


def in_pages_of_2_mib(path: Path) -> int:
    """Bytes of a file that Linux maps in such pages."""
    array = np.memmap(path, np.uint8, "r")
    array[:: mmap.PAGESIZE].max()  # maps every page
    text = Path("/proc/self/smaps").read_text()
    of_file = text.partition(str(path))[2]
    return int(of_file.partition("FilePmdMapped:")[2].split()[0]) << 10


def test_a_copy_is_mapped_in_the_pages_of_what_it_copies(tmp_path) -> None:
    """`shutil.copyfile` let the kernel copy it in small pages, from which artifacts of the cache ran."""
    first, second = tmp_path / "first", tmp_path / "second"
    with first.open("wb") as f:
        f.writelines(in_huge_pages([memoryview(bytes(16 * MIB))]))
    if not in_pages_of_2_mib(first):
        pytest.skip("this file system, or Linux, keeps its files in small pages")
    copy_in_huge_pages(first, second)
    assert in_pages_of_2_mib(second)
    assert second.read_bytes() == first.read_bytes()


def cached(array: np.ndarray) -> float:
    """The share of a mapped array whose pages the system has in memory."""
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    length = array.ctypes.data + array.nbytes - start
    found = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
    pointers = [ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_void_p(found.ctypes.data)]
    assert ctypes.CDLL(None).mincore(*pointers) == 0
    return float((found & 1).mean())


def file_that_is_not_cached(path: Path, size: int) -> np.ndarray:
    path.write_bytes(np.random.default_rng(0).bytes(size))
    with path.open("rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    array = np.memmap(path, np.uint8, "r").view(np.ndarray)
    if cached(array) > 0.1:
        pytest.skip("this file system keeps its files in memory")
    return array


def flags_of(array: np.ndarray) -> set[str]:
    """Linux's flags for the memory in which an array begins."""
    inside, address = False, array.ctypes.data
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError("the array is in no mapping")


def test_pages_are_read_before_they_are_used(tmp_path) -> None:
    array = file_that_is_not_cached(tmp_path / "weights", 32 * MIB)
    whole, in_part = [array[: 9 * MIB + 5], array[24 * MIB :]], [array[10 * MIB : 20 * MIB]]
    before = resident_files()
    thread = read_ahead(whole, in_part)
    assert thread is not None
    thread.join()
    assert [cached(x) for x in whole] == [1, 1]
    assert resident_files() - before < 23 * MIB
    assert ["hg" in flags_of(x) for x in (*whole, *in_part)] == [True, True, False]
    assert "nh" in flags_of(*in_part)


def test_of_an_embedding_rows_are_read_and_of_a_matrix_all() -> None:
    text = "g (int64[n] ids) => (float[n,16] y) { x = Gather(table, ids) z = MatMul(x, w) y = Add(z, bias) }"
    rng = np.random.default_rng(0)
    sizes = {"table": (1000, 8), "w": (8, 16), "bias": (16,)}
    model = model_of(text, {name: rng.standard_normal(size, dtype=np.float32) for name, size in sizes.items()})
    m = occ.build(model, "cpu-jit").manifest
    assert {w.nbytes for k, w in enumerate(m.weights) if k in used_whole(m)} == {512, 64}
    assert {w.nbytes for w in m.weights} == {32000, 512, 64}


def test_nothing_is_read_ahead_that_does_not_fit_or_pay(tmp_path, monkeypatch) -> None:
    array = file_that_is_not_cached(tmp_path / "weights", 24 * MIB)
    assert read_ahead([array[:MIB]]) is None
    assert read_ahead([np.zeros(24 * MIB, np.uint8)]) is None
    monkeypatch.setattr(mapped_arrays, "_memory", lambda: 40 * MIB)
    assert read_ahead([array]) is None
    assert cached(array) < 0.1


def test_room_that_arrays_leave_is_used_again_and_no_other() -> None:
    s = spill_file.SpillFile()
    rng = np.random.default_rng(0)
    sizes = [3, 1, 2, 1, 4]
    made = [rng.integers(0, 255, n * MIB, np.uint8) for n in sizes]
    kept = [s.keep(a)[7:] for a in made]  # a view keeps the room as well
    (segment,) = s._segments
    assert segment._free == [(11 * MIB, spill_file._SEGMENT)]
    del kept[1:3]
    assert segment._free == [(3 * MIB, 6 * MIB), (11 * MIB, spill_file._SEGMENT)]
    again = [rng.integers(0, 255, n * MIB, np.uint8) for n in (2, 2, 1)]
    copies = [s.keep(a) for a in again]
    assert segment._free == [(13 * MIB, spill_file._SEGMENT)]
    for a, b in zip([made[0][7:], made[3][7:], made[4][7:], *again], [*kept, *copies], strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_pieces_are_not_copied_into_pages() -> None:
    large = np.zeros(5 << 20, np.uint8)
    parts = list(in_huge_pages([memoryview(bytes(3)), large.data]))
    inside = [np.shares_memory(np.frombuffer(p, np.uint8), large) for p in parts]
    assert inside == [False, True, False]
