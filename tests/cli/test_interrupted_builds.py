"""Builds that are killed, or that have no room, no home and no cache: no broken file, no poisoned cache, one clear error."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, reference

import occ


class Place:
    """A folder with a model, and what `occ build` makes of it."""

    def __init__(self, folder: Path) -> None:
        self.model, self.made = folder / "m.onnx", folder / "m.occ"
        self.cache = folder / "cache"
        self.proto = mlp(sizes=(8, 64, 4))
        onnx.save(self.proto, self.model)

    def start(self, prepare: Callable[[], None] | None = None, **env: str | None) -> subprocess.Popen[str]:
        given = {**os.environ, "OCC_CACHE_DIR": os.fspath(self.cache), **env}
        command = [sys.executable, "-m", "occ.cli", "build", self.model, "-t", "cpu-jit", "-o", self.made]
        return subprocess.Popen(
            command, env={k: v for k, v in given.items() if v is not None}, text=True, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=prepare,
        )  # fmt: skip

    def build(self, prepare: Callable[[], None] | None = None, **env: str | None) -> tuple[int, str]:
        """The exit code, and what was said of a failure."""
        process = self.start(prepare, **env)
        _, said = process.communicate(timeout=120)
        return process.returncode, said

    def check(self) -> None:
        """What was made is whole, and right."""
        with zipfile.ZipFile(self.made) as whole:
            assert whole.testzip() is None
        feed = {"x": np.random.default_rng(0).standard_normal((3, 8), np.float32)}
        for got, want in zip(occ.load(self.made).run(feed).values(), reference(self.proto, feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def no_large_files() -> None:
    """As on a full disk: what is written beyond 2,000 bytes of a file fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_no_room_for_the_output_leaves_the_old_one(place: Place) -> None:
    assert place.build()[0] == 0
    before = place.made.read_bytes()
    code, said = place.build(no_large_files)
    assert code == 1, said
    assert "Traceback" not in said
    assert "error[" in said
    assert place.made.read_bytes() == before
    assert sorted(p.name for p in place.made.parent.iterdir()) == ["cache", "m.occ", "m.onnx"]
    assert place.build()[0] == 0
    place.check()


@pytest.mark.thinned
@pytest.mark.parametrize(
    "env",
    [{"HOME": None, "OCC_CACHE_DIR": None, "XDG_CACHE_HOME": None}, {"OCC_CACHE_DIR": "/dev/null/cache"}],
    ids=["no home", "no cache"],
)
def test_places_without_home_or_cache(place: Place, env: dict[str, str | None]) -> None:
    code, said = place.build(**env)
    assert code == 0, said
    place.check()


def test_two_builds_into_one_output(place: Place) -> None:
    both = [place.start() for _ in range(2)]
    said = [p.communicate(timeout=120)[1] for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    place.check()


@pytest.mark.slow
def test_killed_builds(place: Place) -> None:
    """At 50 random moments, a third of them with an empty cache."""
    rng = random.Random(0)
    start = time.perf_counter()
    assert place.build()[0] == 0
    whole = time.perf_counter() - start
    for k in range(50):
        if k % 3 == 0:
            shutil.rmtree(place.cache, ignore_errors=True)
        process = place.start()
        time.sleep(rng.uniform(0.05, whole))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        place.check()
    assert place.build()[0] == 0
    place.check()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_compiler_ends_with_the_build_that_started_it(how: int, code: int, place: Place, tmp_path: Path) -> None:
    """It left g++ behind for a minute, with its temporary folder."""
    pytest.importorskip("halide")
    compiler, children = tmp_path / "slow-g++", tmp_path / "children"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in --version) echo slow; exit;; esac\nsleep 300 & echo $! >> {children}; wait\n'
    )
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "occ", "build", place.model, "-t", "cpu", "-o", place.made]
    env = os.environ | {"OCC_CACHE_DIR": os.fspath(place.cache), "OCC_CXX": os.fspath(compiler)}
    building = subprocess.Popen(
        command,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    while not children.exists() or not children.read_text().endswith("\n"):
        assert building.poll() is None
        time.sleep(0.05)
    building.send_signal(how)
    _, said = building.communicate(timeout=120)
    assert (building.returncode, said.strip()) == (code, "interrupted" if how == signal.SIGINT else "")
    last = time.monotonic() + 20  # whoever adopts the children takes a moment to notice
    while left := [pid for pid in children.read_text().split() if Path("/proc", pid).exists()]:
        assert time.monotonic() < last, left
        time.sleep(0.05)
    assert not list((place.cache / "tmp").iterdir())


def test_an_interrupt_before_the_command_is_imported_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    ran = subprocess.run(
        [sys.executable, "-m", "occ", "--version"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.fspath(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_a_second_interrupt_waits_for_what_the_first_ends(tmp_path: Path) -> None:
    """It left the second of two compilers, and said where it was."""
    ending, removed, children = tmp_path / "ending", tmp_path / "removed", tmp_path / "children"
    code = f"""if True:
        import atexit, threading, time
        from contextlib import suppress
        from pathlib import Path
        from occ.compiler.codegen_halide.toolchain import run_all
        def build():
            with suppress(Exception):
                run_all([["sh", "-c", "echo $$ >> {children}; exec sleep 300"]] * 2, Path("."))
            time.sleep(0.5)
            Path({str(removed)!r}).touch()
        threading.Thread(target=build, daemon=True).start()
        while not Path({str(children)!r}).exists() or Path({str(children)!r}).read_text().count("\\n") < 2:
            time.sleep(0.02)
        atexit.register(Path({str(ending)!r}).touch)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    while not ending.exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert removed.exists()
    assert not [pid for pid in children.read_text().split() if Path("/proc", pid).exists()]
