"""Settings of a build: target, options, dims, shapes, rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from occ.compiler.frontend.signature import Overrides
from occ.compiler.passes.base import HintSource, MatchListener
from occ.compiler.passes.manager import Listener
from occ.compiler.targets.default import DEFAULT
from occ.runtime.dataclass import dataclass

Progress = Callable[[str], None]


@dataclass
class Settings:
    """The settings of a build, apart from the model.

    Attributes:
        target: name of the target.
        overrides: extents fixed by the user.
        options: `-C` options as text.
        cache: whether to use the build cache.
        jobs: concurrent toolchain processes.
        save_stages: whether to put the text of every stage into the artifact.
        verify: whether to check the module after each pass.
        limit: passes to run; None for all.
        stop_after: name of the pass to stop after.
        listeners: called before and after each pass.
        rules: rules, passes and operators of the user: objects, modules, or paths of rule files.
        progress: called with the current activity.
        tune: returns the schedule choices that measurements prefer, see `Context`.
        why: called with reasons why rules do not match, see `Context`.
        cases: whether to make plans for broadcast sizes of 1 too, for artifacts that run without the compiler.
        special: shapes with a plan of their own, each like `overrides`.
    """

    target: str = DEFAULT
    overrides: Overrides = field(default_factory=Overrides)
    options: Mapping[str, str] = field(default_factory=dict)
    cache: bool = True
    jobs: int = 2
    save_stages: bool = False
    verify: bool = False
    limit: int | None = None
    stop_after: str = ""
    listeners: Sequence[Listener] = ()
    rules: Sequence[Any] = ()
    progress: Progress = lambda _: None
    tune: HintSource | None = None
    why: MatchListener | None = None
    special: Sequence[Overrides] = ()
    cases: bool = False
