"""Diagnostics: errors that are collected, then raised together as one `CompileError`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from difflib import get_close_matches

from occ.compiler.codes import CODES
from occ.runtime.dataclass import dataclass

# Exit codes of the command line, by the first digits of the first error; 1 by default.
_EXIT = {
    "OCC0303": 2,
    "OCC03": 3,
    "OCC04": 4,
    "OCC0506": 5,
    "OCC0614": 5,
    "OCC0602": 2,
    "OCC0603": 2,
    "OCC0205": 2,
    "OCC09": 70,
}
_LONGEST = 200  # characters of a name from a model that a message repeats


def exit_code(code: str) -> int:
    """The exit code of the command line for a diagnostic code."""
    return next((number for prefix, number in _EXIT.items() if code.startswith(prefix)), 1)


def closest(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name, such as "did you mean `Conv`?"; empty if nothing known is similar."""
    by_fold = {k.casefold(): k for k in known}
    near = get_close_matches(name.casefold(), by_fold, n=2, cutoff=0.65)
    return f"did you mean {' or '.join(f'`{by_fold[n]}`' for n in near)}?" if near else ""


def shorten(text: str, limit: int = _LONGEST) -> str:
    """Text from a model made safe for one line of a terminal: control characters escaped, the middle truncated."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return clean if len(clean) <= limit else f"{clean[: limit - 40]}...{clean[-30:]}"


@dataclass(frozen=True)
class Diagnostic:
    """One message.

    Attributes:
        code: a key of `CODES`.
        message: stands alone; lower case, no final period, identifiers in backticks.
        where: model and node, or empty.
        source: the printed line of the op, or empty: the models have no source text of their own.
        notes: facts.
        helps: actions that the user can take.
        severity: `error` or `warning`.
    """

    code: str
    message: str
    where: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    severity: str = "error"

    def text(self) -> str:
        """The message in human-readable form, several lines."""
        lines = [f"{self.severity}[{self.code}]: {self.message}"]
        if self.where:
            lines.append(f"  --> {self.where}")
        if self.source:
            lines.append(f"   |  {self.source}")
        lines += [f"   = note: {note}" for note in self.notes]
        lines += [f"   = help: {help_}" for help_ in self.helps]
        return "\n".join(lines)

    def as_data(self) -> dict[str, object]:
        """As JSON data."""
        return {
            "severity": self.severity, "code": self.code, "title": CODES[self.code].title, "message": self.message,
            "where": self.where, "source": self.source, "notes": self.notes, "helps": self.helps,
        }  # fmt: skip

    @property
    def exit_code(self) -> int:
        return exit_code(self.code)


class CompileError(Exception):
    """The model cannot be compiled. `diagnostics` has every problem that was found."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(d.text() for d in self.diagnostics))

    def __reduce__(self) -> tuple[type[CompileError], tuple[tuple[Diagnostic, ...]]]:
        return CompileError, (self.diagnostics,)

    @property
    def exit_code(self) -> int:
        return self.diagnostics[0].exit_code


def error(code: str, message: str, *, where: str = "", notes: Iterable[str] = (), help: str = "") -> CompileError:  # noqa: A002
    """A `CompileError` with one diagnostic, to raise if continuing makes no sense."""
    return CompileError([Diagnostic(code, message, where, "", tuple(notes), (help,) if help else ())])


@dataclass
class Sink:
    """Collects the diagnostics of one step."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def error(self, code: str, message: str, *, where: str = "", notes: Iterable[str] = (), help: str = "") -> None:  # noqa: A002
        self.add(Diagnostic(code, message, where, "", tuple(notes), (help,) if help else ()))

    def raise_errors(self) -> None:
        """Raise `CompileError` if any error was collected."""
        errors = [d for d in self.diagnostics if d.severity == "error"]
        if errors:
            raise CompileError(errors)


class Invalid(Exception):
    """Raised by an operator's `infer` or `body` when its operands do not fit; becomes a diagnostic that names the node."""

    def __init__(self, message: str, *, code: str = "OCC0202", note: str = "", help: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.code, self.note, self.help = code, note, help


class Unresolved(Invalid):
    """Raised by `infer` when it needs the value of an operand that is not known at compile time."""

    def __init__(self, operator: str, operand: str) -> None:
        super().__init__(
            f"the `{operand}` operand of `{operator}` is computed at run time",
            code="OCC0203",
            help="set the input shapes with `--shape NAME=...`, so that more of the graph can be evaluated",
        )
