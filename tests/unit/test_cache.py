"""The build cache: whole entries or none, whoever writes, and however it ends."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from occ.compiler.cache import cache as cache_module
from occ.compiler.cache.cache import Cache, cache_dir, can_write, digest

WRITER = """
import sys
from pathlib import Path
from occ.compiler.cache.cache import Cache
cache = Cache(Path(sys.argv[1]))
payload = sys.argv[2].encode() * 400_000
while True:
    cache.put("kernel", "abcdef", payload, ".o")
    print("put", flush=True)
"""


def start(root: Path, letter: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(root), letter], stdout=subprocess.PIPE, text=True)


def test_two_writers_at_once_and_a_kill_leave_a_whole_entry(tmp_path):
    writers = [start(tmp_path, c) for c in "ab"]
    cache = Cache(tmp_path)
    try:
        for w in writers:
            assert w.stdout is not None
            assert w.stdout.readline() == "put\n"
        for _ in range(60):
            data = cache.path("kernel", "abcdef", ".o").read_bytes()
            assert len(data) == 400_000
            assert len(set(data)) == 1
            time.sleep(0.002)
    finally:
        for w in writers:
            w.send_signal(signal.SIGKILL)
            w.communicate()
    data = cache.path("kernel", "abcdef", ".o").read_bytes()
    assert (len(data), len(set(data))) == (400_000, 1)


HOLDER = """
import sys
from pathlib import Path
from occ.compiler.cache.cache import Cache
with Cache(Path(sys.argv[1])).turn("key"):
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.mark.thinned
@pytest.mark.parametrize("end", [lambda p: p.stdin.close(), lambda p: p.kill()], ids=["left", "killed"])
def test_others_wait_for_the_turn_of_a_process_until_it_ends(end, tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        entered = threading.Event()

        def enter():
            with Cache(tmp_path).turn("other"), Cache(tmp_path).turn("key"):
                entered.set()

        waiting = threading.Thread(target=enter)
        waiting.start()
        try:
            assert not entered.wait(0.1)
        finally:
            end(holder)
            waiting.join(300)
        assert entered.is_set()
    assert not any((tmp_path / "tmp").iterdir())


def test_entries_are_found_by_kind_key_and_suffix(tmp_path):
    cache = Cache(tmp_path)
    path = cache.put("tool", "key", b"data", ".x")
    assert path.read_bytes() == b"data"
    assert cache.has("tool", "key", ".x")
    assert not cache.has("tool", "key", ".y")
    assert not cache.has("kernel", "key", ".x")
    assert cache.size() == (1, 4)
    cache.clear()
    assert cache.size() == (0, 0)
    assert not cache.has("tool", "key", ".x")


def test_a_disabled_cache_misses_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "c"))
    Cache().put("tool", "key", b"data")
    off = Cache(enabled=False)
    assert not off.has("tool", "key")
    root = off.put("tool", "key", b"x").parents[2]
    assert off.has("tool", "key")
    del off
    assert not root.exists()


def test_workspaces_of_killed_builds_go_away_after_a_day(tmp_path):
    cache = Cache(tmp_path)
    fresh = tmp_path / "tmp" / "build-fresh"
    stale = tmp_path / "tmp" / "build-stale"
    for folder in (fresh, stale):
        folder.mkdir(parents=True)
        (folder / "f").write_text("x")
    os.utime(stale, (1, 1))
    with cache.workspace() as made:
        assert Path(made).parent == tmp_path / "tmp"
    assert fresh.exists()
    assert not stale.exists()


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"OCC_CACHE_DIR": "/a/b"}, "/a/b"),
        ({"OCC_CACHE_DIR": "c/d"}, str(Path.cwd() / "c" / "d")),  # compilers run in folders of their own
        ({"XDG_CACHE_HOME": "/x"}, "/x/occ"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/occ"),
        ({"HOME": "/home/me"}, "/home/me/.cache/occ"),
    ],
)
def test_where_the_cache_is(env, wanted, monkeypatch):
    for name in ("OCC_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert str(cache_dir()) == wanted


def test_a_cache_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is new goes elsewhere, also what takes the place of a damaged entry; all caches of the process find it."""
    full = Cache(tmp_path / "full")
    full.put("tool", "aa", b"kept", ".t")
    full.put("tool", "bb", b"damaged", ".t").write_bytes(b"other")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.setattr(cache_module, "can_write", lambda _: False)
    cache = Cache(tmp_path / "full")
    assert [cache.get("tool", key, ".t") for key in ("aa", "bb", "cc")] == [b"kept", None, None]
    cache.put("tool", "bb", b"whole", ".t")
    with cache.workspace() as work:
        (Path(work) / "made").write_bytes(b"new")
        assert cache.adopt("tool", "cc", Path(work) / "made", ".t").read_bytes() == b"new"
    cache.drop("tool", "aa", ".t")
    again = Cache(tmp_path / "full")
    assert [again.get("tool", key, ".t") for key in ("aa", "bb", "cc")] == [b"kept", b"whole", b"new"]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_where_files_can_be_put(tmp_path: Path):
    (tmp_path / "file").touch()
    assert can_write(tmp_path / "not" / "there" / "yet")
    assert not can_write(tmp_path / "file")
    assert not can_write(Path("/dev/null/cache"))
    assert not (tmp_path / "not").exists()


def test_parts_of_a_digest_do_not_run_together():
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["a"]) == digest([b"a"])


DAMAGE = {
    "cut": lambda d: d[:-3],
    "empty": lambda d: b"",
    "changed": lambda d: b"x" + d[1:],
    "longer": lambda d: d + b"x",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_a_miss_until_it_is_written_again(damage, tmp_path):
    cache = Cache(tmp_path)
    path = cache.put("kernel", "key", b"an object file", ".o")
    path.write_bytes(damage(b"an object file"))
    assert not cache.has("kernel", "key", ".o")
    cache.put("kernel", "key", b"an object file", ".o")
    assert cache.has("kernel", "key", ".o")


def test_an_entry_without_its_checksum_is_a_miss(tmp_path):
    cache = Cache(tmp_path)
    (tmp_path / "made").write_bytes(b"x")
    cache.adopt("kernel", "key", tmp_path / "made", ".o")
    assert cache.has("kernel", "key", ".o")
    cache.path("kernel", "key", ".o.sha256").write_bytes(b"\xff")
    assert not cache.has("kernel", "key", ".o")
    cache.path("kernel", "key", ".o.sha256").unlink()
    assert not cache.has("kernel", "key", ".o")


def test_a_dropped_entry_leaves_nothing(tmp_path):
    cache = Cache(tmp_path)
    path = cache.put("kernel", "key", b"x", ".o")
    cache.drop("kernel", "key", ".o")
    assert list(path.parent.iterdir()) == []


def test_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch):
    """A container that runs as a number has no entry in passwd; builds ended in a RuntimeError."""
    for name in ("OCC_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    Cache().put("kernel", "00", b"x")
    assert Cache().get("kernel", "00") == b"x"
