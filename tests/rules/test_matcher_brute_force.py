"""The matcher finds exactly what trying every assignment of ops and operand orders finds."""

from itertools import permutations, product
from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from occ.compiler.ir.dtype import F32
from occ.compiler.ir.op import Op, Region
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.rules.pattern import Alternatives, Optional, Pattern, Result, Shared, Variable, node
from occ.compiler.passes.rules.rule import Fusion

F = TensorType(F32, (2,))
ARITY = {"Relu": 1, "LeakyRelu": 1, "Add": 2, "Sub": 2, "Clip": 3}
ALPHAS = (0.5, 0.25)


def graph(rng: Random) -> Region:
    """A body of up to seven ops over two inputs; the last value and some others are outputs."""
    region = Region([F, F], ["a", "b"])
    values = list(region.args)
    for k in range(rng.randint(1, 7)):
        name = rng.choice(sorted(ARITY))
        operands = [rng.choice(values[-4:]) for _ in range(ARITY[name])]
        if name == "Clip" and rng.random() < 0.5:
            operands[1] = None
        attrs = {"alpha": rng.choice(ALPHAS)} if name == "LeakyRelu" else {}
        values.append(region.insert(Op(name, operands, attrs, [F], result_names=[f"v{k}"])).result)
    outputs = [values[-1], *rng.sample(values, rng.randint(0, 1))]
    region.insert(Op("yield", outputs, {}, ()))
    return region


def random_pattern(rng: Random) -> Pattern:
    """A pattern of up to five parts over variables x, y and a wildcard; parts may occur twice."""
    parts: list[Pattern] = [Variable("x"), Variable("y"), Variable(), Variable("x"), Variable("z", optional=True)]
    last: Pattern | None = None
    for _ in range(rng.randint(1, 5)):
        name = rng.choice([*sorted(ARITY), "|", "either", "shared"])
        some = parts[-5:]
        if name == "|":
            made: Pattern = Alternatives((rng.choice(some), rng.choice(some)))
        elif name == "shared":
            made = Shared(rng.choice(some))
        elif name == "either":
            made = node(("Relu", "LeakyRelu"), rng.choice(some))
        else:
            operands = [rng.choice(some) for _ in range(ARITY[name])]
            if name == "Clip" and rng.random() < 0.5:
                operands[1] = Optional(operands[1])
            attrs = {"alpha": rng.choice(ALPHAS)} if name == "LeakyRelu" and rng.random() < 0.5 else {}
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

    # One number a pair: forty drawn ones take Hypothesis ten times as long as all that is tested, and a pair is small already.
    @settings(max_examples=2000, phases=[Phase.explicit, Phase.generate])
    @given(st.integers(0, 2**64 - 1))
    def check(seed):
        rng = Random(seed)
        region, pattern = graph(rng), random_pattern(rng)
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
