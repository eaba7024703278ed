"""Rejects build options given with an artifact, which is already built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from occ.runtime.session import Session


def check_as_built(model: str, built_for: str) -> None:
    """Reject build options for an artifact, whose settings are fixed.

    Raises:
        click.UsageError: `-t` names another target than the artifact has; or there is `--shape` or `--rules`.
    """
    context = click.get_current_context()

    def typed(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    asked = context.params.get("target")
    if typed("target") and asked != built_for:
        remedy = f"leave -t out, or build the model again with -t {asked}"
        raise click.UsageError(f"`{model}` is an artifact for `{built_for}`, not `{asked}`: {remedy}")
    for name, option in (("shapes", "--shape"), ("rules", "--rules")):
        if typed(name):
            raise click.UsageError(f"`{model}` is an artifact: {option} is for `occ build`")


def check_sizes(model: str, session: Session, sizes: Mapping[str, int]) -> None:
    """Reject --dim for a dim that an artifact does not have, or has fixed.

    Raises:
        click.UsageError: there is one.
    """
    from occ.inputs import free_dims

    free = free_dims(session, {})
    for name in sizes:
        if name not in free:
            remedy = f"its dims: {', '.join(free)}" if free else "all its sizes are fixed"
            raise click.UsageError(f"`{model}` is an artifact without a symbolic dim `{name}`; {remedy}")
