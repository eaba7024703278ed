"""Loads user extensions: rules, passes, operators and targets."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import field
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from occ.compiler.diagnostics import CompileError, Invalid, error
from occ.compiler.entry_points import installed, load_point
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.operator.spec import OpSpec
from occ.compiler.passes.base import Pass
from occ.compiler.passes.lower.rule_list import NAMES
from occ.compiler.passes.rules.pattern import OpPattern, Result, check_names
from occ.compiler.passes.rules.rule import Rule
from occ.compiler.passes.rules.schedule_rule import ScheduleRule
from occ.runtime.dataclass import dataclass


@dataclass
class Extensions:
    """Rules, passes and operators of one compilation, in addition to the compiler's own.

    Attributes:
        rules: fusion and rewrite rules.
        schedule_rules: in the order in which they are tried.
        passes: passes with their stage, in which they run after the compiler's own ones.
        files: the rule files, for the command line of a reproducer.
        registry: the operators, including the built-in ones.
    """

    rules: list[Rule] = field(default_factory=list)
    schedule_rules: list[ScheduleRule] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    registry: Registry = field(default_factory=Registry)

    def add(self, item: Any, origin: str) -> None:
        """Add a rule, a pass, an operator, a module or list of them, or the path of a rule file.

        Raises:
            CompileError: OCC0610 it is none of these, its file cannot be loaded, or its name is taken.
        """
        match item:
            case Rule():
                self._add_rule(item, origin)
            case ScheduleRule():
                self._add_schedule_rule(item, origin)
            case Pass():
                self._add_pass(item, origin)
            case type() if issubclass(item, Pass):
                self._add_pass(item(), origin)
            case OpSpec():
                self._add_operator(item, origin)
            case Registry():
                for spec in item.added:
                    self._add_operator(spec, item.origin(spec.name))
            case str() | os.PathLike():
                path = Path(os.fspath(item))
                self.files.append(str(path.resolve()))
                found = load_file(path)
                if not contents(found):
                    raise error(
                        "OCC0610", f"`{path}` defines no rule, pass or operator", help="see docs/guide-fusion.md"
                    )
                self.add(found, str(path))
            case ModuleType():
                for part in contents(item):
                    self.add(part, origin)
            case Iterable():
                for part in item:
                    self.add(part, origin)
            case _:
                help_ = "rules are made by @occ.fusion and @occ.rewrite"
                raise error(
                    "OCC0610", f"{type(item).__name__} is not a rule, pass or operator", where=origin, help=help_
                )

    def _add_operator(self, spec: OpSpec, origin: str) -> None:
        try:
            self.registry.add(spec, origin)
        except ValueError as e:
            raise error("OCC0610", str(e), where=origin) from None

    def _add_rule(self, rule: Rule, origin: str) -> None:
        clash = next((r for r in self.rules if r.name == rule.name and r is not rule), None)
        if clash is not None:
            raise error("OCC0610", f"two rules are called `{rule.name}`", notes=[clash.origin, rule.origin or origin])
        if rule not in self.rules:
            self.rules.append(rule)

    def _add_schedule_rule(self, rule: ScheduleRule, origin: str) -> None:
        clash = next((r for r in self.schedule_rules if r.name == rule.name and r is not rule), None)
        if clash is not None or rule.name in NAMES:
            whose = clash.origin if clash is not None else "the compiler's own"
            notes = [whose, rule.origin or origin]
            raise error("OCC0610", f"two schedule rules are called `{rule.name}`", notes=notes)
        if rule not in self.schedule_rules:
            self.schedule_rules.append(rule)

    def check_rules(self) -> None:
        """Check that the operators used in rules exist; they may be defined after them.

        Raises:
            CompileError: OCC0610 there is no such operator or attribute.
        """
        for rule in self.rules:
            for part in (p for pattern in rule.patterns for p in pattern.walk()):
                if isinstance(part, Result):
                    self._check_operators(rule, part.op)

    def _check_operators(self, rule: Rule, pattern: OpPattern) -> None:
        for name in pattern.operators:
            try:
                check_names(name, pattern.attrs, self.registry)
            except Invalid as e:
                raise error("OCC0610", f"rule `{rule.name}`: {e}", where=rule.origin, help=e.help) from None

    def _add_pass(self, p: Pass, origin: str) -> None:
        if not p.name or not p.stage:
            raise error("OCC0610", f"the pass `{type(p).__name__}` needs a `name` and a `stage`", where=origin)
        if p not in self.passes:
            self.passes.append(p)


def contents(module: ModuleType) -> list[Any]:
    """The rules, passes and operators that a module defines, in order."""
    found: list[Any] = []
    for value in vars(module).values():
        own = isinstance(value, type) and issubclass(value, Pass) and value.__module__ == module.__name__
        if own or isinstance(value, (Rule, ScheduleRule, OpSpec)):
            found.append(value)
    return found


def load_file(path: Path) -> ModuleType:
    """Run a rule file; returns its module.

    Raises:
        CompileError: OCC0610 it does not exist or raised an exception.
    """
    if not path.is_file():
        raise error("OCC0610", f"there is no rule file `{path}`")
    return _load(path.resolve(), path.stat().st_mtime_ns)


class _Uncached(SourceFileLoader):
    """Compiles the source itself: Python's cached bytecode is keyed by size and second, and rules change faster."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@cache
def _load(path: Path, _changed: int) -> ModuleType:
    name = f"occ_rules_{hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Uncached(name, str(path)))
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise error("OCC0610", f"`{path}` is not a Python file", help="rule files end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except CompileError:
        raise
    except Exception as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename == str(path)]
        line = f"{path}:{frames[-1].lineno}" if frames else str(path)
        raise error("OCC0610", f"the rule file cannot be loaded: {type(e).__name__}: {e}", where=line) from e
    return module


def extensions(given: Iterable[Any] = ()) -> Extensions:
    """The rules, passes and operators of installed packages, and those given.

    Raises:
        CompileError: OCC0610 something cannot be loaded.
    """
    made = Extensions()
    for group in ("occ.ops", "occ.passes", "occ.rules"):
        for name, point in installed(group).items():
            made.add(load_point(point), f"{group} {name}")
    for item in given:
        made.add(item, "rules")
    made.files = list(dict.fromkeys(made.files))
    made.check_rules()
    return made
