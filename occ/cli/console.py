"""Console output: errors and progress on stderr, exit codes."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from occ.compiler.diagnostics import Diagnostic
    from occ.runtime.session import Session

USAGE, INTERNAL, INTERRUPTED, TERMINATED = 2, 70, 130, 143
WIDTH = 80  # columns of tables and lists
_COLORS = {"error": "red", "warning": "yellow"}


def wants_color() -> bool:
    """Whether stderr is a terminal that may be coloured (https://no-color.org)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def say(text: str = "") -> None:
    """Text for people."""
    click.echo(text, err=True)


def json_line(data: Any) -> str:
    """Data as one line of JSON. Numbers that JSON lacks are strings as in protobuf."""
    return json.dumps(_finite(data), allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, dict):
        return {k: _finite(v) for k, v in data.items()}
    return [_finite(v) for v in data] if isinstance(data, (list, tuple)) else data


def report_sizes(session: Session, sizes: Mapping[str, int]) -> None:
    """Report the values of unspecified symbolic dims of random inputs, except batches of one."""
    from occ.inputs import free_dims

    chosen = free_dims(session, sizes)
    if any(n > 1 for n in chosen.values()):
        say(f"random inputs with {', '.join(f'{d}={n}' for d, n in chosen.items())}; --dim sets other sizes")


@contextmanager
def real_inputs_wanted(random: bool) -> Generator[None]:
    """Explain what to do if a run fails on random inputs' values, such as indices."""
    from occ.runtime.errors import RunError

    try:
        yield
    except RunError as e:
        if not random or e.code != "OCC0504":
            raise
        raise RunError(e.code, e.message, "the inputs are random: pass real ones with --inputs FILE.npz") from None


def count(n: int, what: str) -> str:
    """A number of things: `1 step`, `2 steps`."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def fitted(head: str, text: str) -> str:
    """A heading followed by a text wrapped at `WIDTH` columns, with a hanging indent."""
    lines = wrap(text, max(WIDTH - len(head), 24), break_on_hyphens=False)
    return ("\n" + " " * len(head)).join([(head + (lines[0] if lines else "")).rstrip(), *lines[1:]])


def show_error(text: str) -> None:
    """A diagnostic, its first word coloured on a terminal."""
    head, _, rest = text.partition(":")
    if wants_color():
        head = click.style(head, fg=_COLORS.get(head.partition("[")[0], "red"), bold=True)
    say(f"{head}:{rest}")


@contextmanager
def progress() -> Generator[Callable[[str], None]]:
    """A progress function: a moving line on a terminal, nothing elsewhere."""
    if not wants_color():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


class Terminated(BaseException):
    """SIGTERM, as an exception: compilers that run are ended, and temporary files removed."""


def terminate(number: int, _: object) -> None:
    """A handler of SIGTERM; a second one ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise Terminated


def guarded(run: Callable[[], Any]) -> int:
    """Run a command; every possible failure becomes one message and an exit code."""
    from occ.compiler.diagnostics import CompileError, Diagnostic, exit_code
    from occ.runtime.errors import RunError

    warnings.showwarning = lambda message, *_: show_error(f"warning: {message}")
    try:
        return int(run() or 0)
    except CompileError as e:
        _tell(e.diagnostics)
        return e.exit_code
    except RunError as e:
        _tell([Diagnostic(e.code, e.message, helps=(e.help,) if e.help else ())])
        return exit_code(e.code)
    except click.exceptions.Exit as e:
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except click.ClickException as e:
        from occ.cli.usage_hints import with_hint

        e = with_hint(e)
        click.echo(
            json_line({"severity": "error", "code": "", "message": e.format_message()})
        ) if _as_json() else e.show()
        return USAGE
    except (BrokenPipeError, SystemExit):
        return 0  # the reader of our output has closed it, which click turns into an exit
    except OSError as e:
        where = f"cannot write `{e.filename}`: " if e.filename else ""
        _tell([Diagnostic("OCC0605", f"{where}{e.strerror or e}")])
        return 1
    except MemoryError as e:
        remedy = "set smaller sizes with --dim or --shape"
        _tell([Diagnostic("OCC0607", f"there is not enough memory: {e}", helps=(remedy,))])
        return exit_code("OCC0607")
    except Exception as e:
        return _internal(e)


def _as_json() -> bool:
    return "--json" in sys.argv


def _tell(diagnostics: Iterable[Diagnostic]) -> None:
    for d in diagnostics:
        click.echo(json_line(d.as_data())) if _as_json() else show_error(d.text())


def _internal(e: Exception) -> int:
    from occ.compiler.diagnostics import Diagnostic

    handle, path = tempfile.mkstemp(prefix="occ-crash-", suffix=".txt")
    with os.fdopen(handle, "w") as f:
        f.write(f"command: {' '.join(sys.argv)}\n\n")
        traceback.print_exception(e, file=f)
    message, note = f"internal error: {type(e).__name__}: {str(e)[:300]}", f"the traceback is in {path}"
    _tell([Diagnostic("OCC0901", message, notes=(note,), helps=("report this with that file and the model",))])
    return INTERNAL
