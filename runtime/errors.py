"""The errors of running a model."""

from __future__ import annotations


class RunError(Exception):
    """A run failed, or an artifact or input cannot be used.

    Attributes:
        code: a diagnostic code; `occ explain CODE` says more.
        message: stands alone, names the input or node.
        help: what the user can do, or empty.
    """

    def __init__(self, code: str, message: str, help: str = "") -> None:  # noqa: A002
        self.code, self.message, self.help = code, message, help
        super().__init__(f"error[{code}]: {message}" + (f"\n   = help: {help}" if help else ""))
