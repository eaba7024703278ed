"""Loops in LLVM IR, with values carried from one iteration to the next."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.types import I64

Body = Callable[[Any, list[Any]], list[Any]]  # (index, carried values) -> their next values


def for_loop(b: ir.IRBuilder, start: Any, stop: Any, step: int, carried: Sequence[Any], body: Body) -> list[Any]:
    """`for i in range(start, stop, step)`; returns the carried values after the last iteration.

    A loop over constants that runs once is written without a loop.
    """
    if isinstance(start, ir.Constant) and isinstance(stop, ir.Constant) and stop.constant - start.constant <= step:
        return body(start, list(carried)) if stop.constant > start.constant else list(carried)
    return while_loop(b, start, step, carried, lambda i, _: b.icmp_signed("<", i, stop), body)[1]


def while_loop(
    b: ir.IRBuilder, start: Any, step: int, carried: Sequence[Any], holds: Callable[[Any, list[Any]], Any], body: Body
) -> tuple[Any, list[Any]]:
    """A loop while `holds(index, carried)`, an i1; returns the index and carried values at its end."""
    entry = b.block
    head, inside, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(start, entry)
    phis: list[Any] = []
    for value in carried:
        phi = b.phi(value.type)
        phi.add_incoming(value, entry)
        phis.append(phi)
    b.cbranch(holds(index, phis), inside, done)
    b.position_at_end(inside)
    following = body(index, phis)
    back = b.block
    index.add_incoming(b.add(index, I64(step), flags=("nsw",)), back)
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, back)
    b.branch(head)
    b.position_at_end(done)
    return index, phis


def unless_empty(b: ir.IRBuilder, cond: Any, body: Callable[[], None]) -> None:
    """Run `body` if `cond` holds."""
    inside, done = b.append_basic_block("then"), b.append_basic_block("endif")
    b.cbranch(cond, inside, done)
    b.position_at_end(inside)
    body()
    b.branch(done)
    b.position_at_end(done)
