"""What real shells complete when a user presses TAB, in a terminal of their own."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import onnx
import pytest
from building import mlp

from occ.cli import COMMANDS, cli
from occ.cli.completers import completer

BIN = Path(sys.executable).parent
# A line as it is typed, and what it is after TAB, in all shells; tests of more than one candidate type what tells them apart.
LINES = {
    "occ bise": "occ bisect ",
    "occ build digits.on": "occ build digits.onnx",
    "occ build digits.onnx --rul": "occ build digits.onnx --rules",
    "occ build digits.onnx -t cpu-": "occ build digits.onnx -t cpu-jit",
    "occ build digits.onnx --target inte": "occ build digits.onnx --target interp",
    "occ build digits.onnx --target-cpu neo": "occ build digits.onnx --target-cpu neoverse-n1",
    "occ build digits.onnx --emit obj": "occ build digits.onnx --emit object",
    "occ build digits.onnx -C halide.t": "occ build digits.onnx -C halide.target=",
    "occ build digits.onnx --print-after fuse-p": "occ build digits.onnx --print-after fuse-patterns",
    "occ dump digits.onnx --stage sched": "occ dump digits.onnx --stage scheduled",
    "occ run digits.onnx --inputs thr": "occ run digits.onnx --inputs three.npy",
    "occ run digits.onnx --input x=thr": "occ run digits.onnx --input x=three.npy",
    "occ run digits.onnx --dim N": "occ run digits.onnx --dim N=",
    "occ bench digits.onnx --against onnxruntime,openv": "occ bench digits.onnx --against onnxruntime,openvino",
    "occ explain OCC0901": "occ explain OCC0901 ",
    "occ ops com.microsoft.MatMulNB": "occ ops com.microsoft.MatMulNBits",
    "occ opt digits.occ -p fold,fuse-p": "occ opt digits.occ -p fold,fuse-patterns",
}


class Terminal:
    """A shell in a terminal."""

    def __init__(self, command: list[str], folder: Path) -> None:
        pid, self._fd = pty.fork()
        if not pid:
            os.chdir(folder)
            wanted = {
                "PATH": f"{BIN}:/usr/bin:/bin",
                "HOME": str(folder),
                "TERM": "dumb",
                "PS1": "$ ",
                "LC_ALL": "C.UTF-8",
            }
            os.execvpe(command[0], command, wanted)
        self.pid, self.seen = pid, ""
        termios.tcsetwinsize(self._fd, (50, 300))

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait(self, pattern: str, seconds: float = 90) -> bool:
        """Read until a pattern is seen."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            if time.monotonic() > end or not select.select([self._fd], [], [], max(0, end - time.monotonic()))[0]:
                return False
            with suppress(OSError):
                self.seen += re.sub(
                    r"\x1b\[[\x20-\x3f]*[\x40-\x7e]|\x1b[=>\]][^\x07\x1b]*\x07?|[\x07\r]",
                    "",
                    os.read(self._fd, 4096).decode(errors="replace"),
                )
        return True

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


SETUPS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(occ completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u; eval "$(occ completion zsh)"; PS1="$ "'),
    "fish": (["fish", "--no-config", "-i"], "occ completion fish | source; function fish_prompt; echo '$ '; end"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = Path(__file__).parents[2]
    for name in ("digits.onnx", "three.npy"):
        shutil.copy(root / "examples" / name, tmp_path)
    onnx.save(mlp(), tmp_path / "m.onnx")
    return tmp_path


@pytest.fixture(params=list(SETUPS))
def terminal(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    command, setup = SETUPS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    made = Terminal(command, folder)
    made.type(setup + "; echo set''up\n")
    assert made.wait("setup"), made.seen
    yield made
    made.close()


def test_a_real_shell_completes_what_is_typed(terminal: Terminal) -> None:
    for typed, want in LINES.items():
        terminal.seen = ""
        terminal.type(typed + "\t")
        assert terminal.wait(re.escape(want)), f"{typed!r} became {terminal.seen!r}, not {want!r}"
        terminal.type("\x15")  # ^U: away with the line


def test_every_value_that_is_typed_is_completed_or_known_to_be_free() -> None:
    ctx = click.Context(cli)
    commands = [cli.get_command(ctx, name) for name in COMMANDS]
    typed = [(c.name, p) for c in commands if c for p in c.params if isinstance(p.type, click.types.StringParamType)]
    assert [
        f"{name} {p.opts[-1]}" for name, p in typed if completer(p) is None and not getattr(p, "is_flag", False)
    ] == []
