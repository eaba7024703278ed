"""Exit codes that take a process, and what goes to which stream."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def process(*args: str, **env: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "occ.cli", *args]

    def listen() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells start what runs in the background with it ignored

    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ | env, preexec_fn=listen
    )


def test_interrupt_is_130_and_leaves_nothing(tmp_path, model):
    with process("build", "-", "-t", "cpu-jit", "-o", str(tmp_path / "o.occ")) as waiting:
        assert waiting.stdin is not None
        waiting.stdin.write("x" * 1_000_000)  # more than a pipe holds: when this is done, it is reading
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=300)
    assert waiting.returncode == 130, err
    assert "Traceback" not in err
    assert not (tmp_path / "o.occ").exists()


def test_a_reader_that_goes_away_is_no_error(model):
    with process("ops") as writing:
        assert writing.stdout is not None
        writing.stdout.close()
        assert writing.stderr is not None
        err = writing.stderr.read()
    assert writing.returncode == 0
    assert "Traceback" not in err


def test_without_a_compiler_the_answer_is_4_and_offers_cpu_jit(model, tmp_path):
    empty = str(tmp_path / "cache")  # without kernels, which could be linked without a compiler
    for env in ({"PATH": str(tmp_path), "OCC_CACHE_DIR": empty}, {"OCC_CXX": "/no/such/compiler"}):
        with process("build", str(model), "-t", "cpu", **env) as building:
            out, err = building.communicate()
        assert building.returncode == 4
        assert err.count("error[") == 1
        assert "-t cpu-jit" in err
        assert out == ""
    with process("build", str(model), "-t", "cpu-jit", PATH=str(tmp_path)) as building:
        building.communicate()
    assert building.returncode == 0


def test_an_internal_error_is_70_and_says_where_its_trace_is(model, occ_cli, monkeypatch):
    import occ.compiler.driver.compilation as driver

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(driver.Compilation, "advance", fail)
    ran = occ_cli("build", model, "-t", "interp")
    assert ran.code == 70
    assert "error[OCC0901]: internal error: ZeroDivisionError" in ran.err
    trace = Path(ran.err.partition("traceback is in ")[2].splitlines()[0])
    assert "a fault" in trace.read_text()
    trace.unlink()


def test_words_for_people_do_not_go_to_standard_output(model, occ_cli):
    for args in (["build", model, "-t", "interp"], ["check", model, "-t", "interp"]):
        assert occ_cli(*args).out == ""
