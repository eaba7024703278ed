"""Exceptions of failed runs through a native entry."""

from __future__ import annotations

from occ.runtime.dims import symbols
from occ.runtime.errors import RunError
from occ.runtime.hostops.sizes import impossible
from occ.runtime.manifest import Manifest, Step
from occ.runtime.native.call import CHECK, HOST, IMPOSSIBLE, KERNEL, MISFIT, NO_MEMORY, EntryCall
from occ.runtime.native.entry_block import Native
from occ.runtime.native.host_steps import misfit
from occ.runtime.signature import constraint_error

LOST = "did not run, for the reason that Python has printed"


def failure(native: Native, code: int, call: EntryCall) -> RunError:
    """The error of a call.

    Args:
        native: state that the entries share.
        code: the return code of the call.
        call: describes the failure.
    """
    if code == NO_MEMORY:
        text = f"a run needs {call.needed} bytes of memory at once, which cannot be allocated"
        return RunError("OCC0505", text, "it depends on the shapes of the inputs and the sizes of the model")
    if code == MISFIT and call.step < 0:
        return _constraint(native.manifest, call)
    if code not in (KERNEL, CHECK, HOST, MISFIT):
        return RunError("OCC0505", f"the entry of the model ended with code {code}")
    step = native.manifest.plans[call.plan].steps[call.step]
    match code:
        case _ if code == HOST:
            return RunError("OCC0505", f"node `{_nodes(step)}` {LOST}")
        case _ if code == MISFIT:
            return _misfit(step, call)
        case _ if code == CHECK:
            return check_error(step, call.detail)
        case _ if call.tasks:
            return kernel_error(step, f"its parallel loop {LOST}")
        case _:
            return kernel_error(
                step, native.library.message if native.library.run is not None else f"code {call.detail}"
            )


def _misfit(step: Step, call: EntryCall) -> RunError:
    if call.detail == IMPOSSIBLE:
        said = impossible(step.attrs.get("operator", ""), call.got, call.wanted)
        return RunError("OCC0504", f"node `{_nodes(step)}`: {said}")
    sizes = f"a size of {call.got} where {call.wanted} was expected"
    return misfit(step, sizes if call.got != call.wanted else "a result of unexpected size")


def _constraint(m: Manifest, call: EntryCall) -> RunError:
    """Two sizes that a plan assumes equal are not."""
    names = ["", *sorted(m.functions)]
    if 0 < call.plan < len(names):
        waiting = m.functions[names[call.plan]].constraints
    else:
        own = m if not call.plan else m.at(call.plan - len(names))
        shown = {e for i in own.inputs for e in i.shape if isinstance(e, str)}
        waiting = [c for c in own.constraints if not symbols(c.lhs) | symbols(c.rhs) <= shown]
    return constraint_error(waiting[call.detail], call.got, call.wanted, {d.name: d.label for d in m.dims})


def _nodes(step: Step) -> str:
    return ", ".join(step.nodes[:3]) or step.name


def check_error(step: Step, k: int) -> RunError:
    """A check of the data found something that the node cannot process.

    A plan may come from a text with fewer checks.
    """
    return RunError("OCC0504", step.checks[k - 1] if k <= len(step.checks) else f"check {k} of `{step.name}` fails")


def kernel_error(step: Step, message: str) -> RunError:
    """A kernel returned an error code."""
    return RunError("OCC0505", f"the kernel of node `{_nodes(step)}` failed: {message}")
