"""The matcher finds exactly what trying every assignment of ops and operand orders finds."""

from itertools import permutations, product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.op import Op, Region
from occ.compiler.ir.ops import builtin
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.rules.pattern import Alternatives, Optional, Pattern, Result, Shared, Variable, node
from occ.compiler.passes.rules.rule import Fusion

F = TensorType(F32, (2,))
ARITY = {"Relu": 1, "LeakyRelu": 1, "Add": 2, "Sub": 2, "Clip": 3}
ALPHAS = (0.5, 0.25)


@st.composite
def graphs(draw):
    """A body of up to seven ops over two inputs; the last value and some others are outputs."""
    region = Region([F, F], ["a", "b"])
    values = list(region.args)
    for k in range(draw(st.integers(1, 7))):
        name = draw(st.sampled_from(sorted(ARITY)))
        operands = [draw(st.sampled_from(values[-4:])) for _ in range(ARITY[name])]
        if name == "Clip" and draw(st.booleans()):
            operands[1] = None
        attrs = {"alpha": draw(st.sampled_from(ALPHAS))} if name == "LeakyRelu" else {}
        values.append(region.insert(Op(name, operands, attrs, [F], result_names=[f"v{k}"])).result)
    outputs = [values[-1], *draw(st.lists(st.sampled_from(values), max_size=1))]
    region.insert(Op("yield", outputs, {}, ()))
    return region


@st.composite
def patterns(draw):
    """A pattern of up to five parts over variables x, y and a wildcard; parts may occur twice."""
    parts: list[Pattern] = [Variable("x"), Variable("y"), Variable(), Variable("x"), Variable("z", optional=True)]
    last: Pattern | None = None
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from([*sorted(ARITY), "|", "either", "shared"]))
        some = parts[-5:]
        if name == "|":
            made: Pattern = Alternatives((draw(st.sampled_from(some)), draw(st.sampled_from(some))))
        elif name == "shared":
            made = Shared(draw(st.sampled_from(some)))
        elif name == "either":
            made = node(("Relu", "LeakyRelu"), draw(st.sampled_from(some)))
        else:
            operands = [draw(st.sampled_from(some)) for _ in range(ARITY[name])]
            if name == "Clip" and draw(st.booleans()):
                operands[1] = Optional(operands[1])
            attrs = {"alpha": draw(st.sampled_from(ALPHAS))} if name == "LeakyRelu" and draw(st.booleans()) else {}
            made = node(name, *operands, **attrs)
        parts.append(made)
        last = made if isinstance(made, Result) else last
    return last if last is not None else node("Relu", Variable("x"))


def variants(pattern, chosen):
    """Every way to settle the alternatives and operand orders of a pattern: (choices, orders) as one dict."""
    if pattern in chosen or getattr(pattern, "op", None) in chosen:
        yield chosen
        return
    match pattern:
        case Alternatives():
            for choice in pattern.choices:
                yield from variants(choice, chosen | {pattern: choice})
        case Optional():
            yield from variants(pattern.inner, chosen | {pattern: pattern.inner})
            yield chosen | {pattern: None}
        case Shared():
            yield from variants(pattern.inner, chosen)
        case Result():
            operands = pattern.op.operands
            some = any(builtin()[name].commutes for name in pattern.op.operators)
            orders = permutations(range(len(operands))) if some else [tuple(range(len(operands)))]
            for order in orders:
                yield from all_of(operands, chosen | {pattern.op: order})
        case _:
            yield chosen


def all_of(parts, chosen):
    if not parts:
        yield chosen
        return
    for first in variants(parts[0], chosen):
        yield from all_of(parts[1:], first)


def holds(pattern, value, chosen, ops, names, held, shared):
    """Whether a value is what a settled pattern says, given the op of each op pattern."""
    lasting = isinstance(pattern, Alternatives | Variable) and not getattr(pattern, "name", "")
    if lasting and held.setdefault(pattern, value) is not value:
        return False
    match pattern:
        case Variable():
            if value is None and not pattern.optional:
                return False
            return not pattern.name or names.setdefault(pattern.name, value) is value
        case Alternatives():
            return holds(chosen[pattern], value, chosen, ops, names, held, shared)
        case Optional():
            if chosen[pattern] is None or value is None:
                return chosen[pattern] is None and value is None
            return holds(pattern.inner, value, chosen, ops, names, held, shared)
        case Shared():
            if value is not None and value.defining_op is not None:
                shared.add(value.defining_op)
            return holds(pattern.inner, value, chosen, ops, names, held, shared)
        case Result():
            op, order = ops[pattern.op], chosen[pattern.op]
            if value is None or op.result is not value or op.name not in pattern.op.operators:
                return False
            if any(op.attrs.get(k) != a.value for k, a in pattern.op.attrs.items()):
                return False
            if len(op.operands) != len(order) or (not op.spec.commutes and order != tuple(range(len(order)))):
                return False
            pairs = zip(pattern.op.operands, order, strict=True)
            return all(holds(p, op.operands[k], chosen, ops, names, held, shared) for p, k in pairs)
    raise AssertionError(pattern)


def brute_force(pattern, root, every):
    """All matches at a root, as comparable keys."""
    found = set()
    for chosen in variants(pattern, {}):
        wanted = [k for k in chosen if not isinstance(k, Pattern)]
        for ops in product(*([op for op in every if op.name in part.operators] for part in wanted)):
            assigned = dict(zip(wanted, ops, strict=True))
            names, shared = {}, set()
            if not holds(pattern, root.result, chosen, assigned, names, {}, shared):
                continue
            inside = set(ops)
            interior = [op for op in inside if op is not root and op not in shared]
            if any(user not in inside for op in interior for user in op.result.users):
                continue
            found.add(key(names, inside, shared))
    return found


def key(names, ops, shared):
    return (
        frozenset((n, None if v is None else id(v)) for n, v in names.items()),
        frozenset(map(id, ops)),
        frozenset(id(o) for o in shared if o in ops),
    )


def test_matcher_finds_what_brute_force_finds():
    """On 2,000 random pairs of graph and pattern, which match often enough to mean something."""
    seen = {"pairs": 0, "matches": 0}

    @settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(graphs(), patterns())
    def check(region, pattern):
        rule = Fusion("r", (pattern,), ())
        every = region.body
        for root in every:
            got = {key(m.names, m.ops, m.shared) for m in rule.matches(root)}
            assert got == brute_force(pattern, root, every)
            seen["matches"] += len(got)
        seen["pairs"] += 1

    check()
    assert seen["pairs"] >= 2000
    assert seen["matches"] > 500
