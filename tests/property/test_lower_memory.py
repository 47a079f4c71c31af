"""Placement: nothing that is alive together overlaps, and nothing wastes more than it must."""

from __future__ import annotations

from dataclasses import replace

import lower_toys as toys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.errors import Infeasible
from worker.compiler.machine.machine import Machine
from worker.compiler.memory.allocate import Request, allocate
from worker.compiler.memory.memory_map import CallUse, HomeMap, plan_home

Interval = tuple[int, int]
lives = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(1, 200)), min_size=1, max_size=14
)


def requests(drawn: list[tuple[int, int, int]], align: int) -> list[Request]:
    spans = [(first, first + length) for first, length, _ in drawn]
    return [
        Request(
            size,
            align,
            frozenset(
                other
                for other, (a, b) in enumerate(spans)
                if other != k and a <= spans[k][1] and spans[k][0] <= b
            ),
        )
        for k, (_, _, size) in enumerate(drawn)
    ]


@given(lives, st.sampled_from([1, 4, 64]))
def test_conflicting_requests_are_disjoint(drawn: list[tuple[int, int, int]], align: int) -> None:
    asked = requests(drawn, align)
    plan = allocate(asked)
    for k, request in enumerate(asked):
        assert plan.addresses[k] % align == 0
        assert plan.addresses[k] + request.size_bytes <= plan.peak_bytes
        for c in request.conflicts:
            low, high = plan.addresses[c], plan.addresses[c] + asked[c].size_bytes
            assert plan.addresses[k] + request.size_bytes <= low or high <= plan.addresses[k]
    padded = [-(-r.size_bytes // align) * align for r in asked]
    assert plan.peak_bytes <= sum(padded)
    most = max(
        sum(size for size, (first, length, _) in zip(padded, drawn, strict=True)
            if first <= when <= first + length)
        for when in range(20)
    )  # fmt: skip
    assert plan.peak_bytes >= most - align + 1


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.data())
def test_nested_scopes_never_exceed_the_largest_path(sizes: list[int], data: st.DataObject) -> None:
    """Scopes form a tree: the peak is the largest sum along a path, as strategies assume."""
    parent = [-1, *(data.draw(st.integers(0, k - 1)) for k in range(1, len(sizes)))]

    def ancestors(k: int) -> list[int]:
        return [] if parent[k] < 0 else [parent[k], *ancestors(parent[k])]

    related = [
        frozenset(
            j for j in range(len(sizes)) if j != k and (j in ancestors(k) or k in ancestors(j))
        )
        for k in range(len(sizes))
    ]
    plan = allocate([Request(s, 1, r) for s, r in zip(sizes, related, strict=True)])
    assert plan.peak_bytes == max(
        sizes[k] + sum(sizes[a] for a in ancestors(k)) for k in range(len(sizes))
    )


@st.composite
def models(
    draw: st.DrawFn,
) -> tuple[dict[str, int], list[str], list[str], list[str], list[CallUse], dict[str, str]]:
    """A chain-like model: call k writes `t{k}` from earlier tensors and weights; some are views."""
    weights = [f"w{k}" for k in range(draw(st.integers(0, 3)))]
    size_of = {name: draw(st.integers(1, 500)) for name in weights}
    size_of["x"] = draw(st.integers(1, 500))
    known, calls, view_of = ["x"], [], {}
    for k in range(draw(st.integers(1, 10))):
        name = f"t{k}"
        if draw(st.integers(0, 3)) == 0:
            view_of[name] = draw(st.sampled_from([*known, *weights]))
            size_of[name] = size_of[view_of[name]]
        else:
            size_of[name] = draw(st.integers(1, 500))
            pool = [*known, *weights]
            reads = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique=True))
            scratch: tuple[str, ...] = ()
            if draw(st.booleans()):
                scratch = (f"s{k}",)
                size_of[scratch[0]] = draw(st.integers(1, 500))
            calls.append(CallUse((*reads, *scratch), (name, *scratch)))
        known.append(name)
    return size_of, weights, ["x"], [known[-1]], calls, view_of


@given(models())
def test_home_arena(
    model: tuple[dict[str, int], list[str], list[str], list[str], list[CallUse], dict[str, str]],
) -> None:
    size_of, weights, inputs, outputs, calls, view_of = model
    plan = plan_home(size_of, weights, inputs, outputs, calls, view_of, toys.flat_machine())

    def root(name: str) -> str:
        return root(view_of[name]) if name in view_of else name

    for view in view_of:
        if root(view) in plan.address_of:
            assert plan.address_of[view] == plan.address_of[root(view)]
    alive: dict[str, set[int]] = {}
    for when, call in enumerate(calls):
        for name in (*call.reads, *call.writes):
            alive.setdefault(root(name), set()).add(when)
    for name in inputs:
        alive.setdefault(root(name), set()).add(-1)
    for name in outputs:
        alive.setdefault(root(name), set()).add(len(calls))
    for name in weights:
        alive[name] = {-1, len(calls)}
    names = sorted(alive)
    for i, a in enumerate(names):
        assert plan.address_of[a] % 64 == 0
        assert plan.address_of[a] + size_of[a] <= plan.home_bytes
        for b in names[:i]:
            if max(alive[a]) < min(alive[b]) or max(alive[b]) < min(alive[a]):
                continue
            (low, first), (high, second) = sorted((plan.address_of[n], n) for n in (a, b))
            assert low + size_of[first] <= high, (first, second)
    activations = [n for n in names if n not in weights]
    assert plan.peak_activation_bytes <= plan.home_bytes - plan.weight_bytes + 64
    rounded = sum(-(-size_of[n] // 64) * 64 for n in activations)
    assert plan.home_bytes - plan.weight_bytes <= rounded


def chain(length: int, machine: Machine) -> HomeMap:
    size_of = {f"t{k}": 128 for k in range(length + 1)}
    calls = [CallUse((f"t{k}",), (f"t{k + 1}",)) for k in range(length)]
    return plan_home(size_of, [], ["t0"], [f"t{length}"], calls, {}, machine)


def test_a_chain_needs_two_tensors() -> None:
    assert chain(9, toys.flat_machine()).home_bytes == 256


def test_home_overflow_is_infeasible() -> None:
    machine = toys.flat_machine()
    small = replace(machine.levels[0], capacity_bytes=200)
    with pytest.raises(Infeasible) as caught:
        chain(3, replace(machine, levels=(small, *machine.levels[1:])))
    shortfall = caught.value.shortfall
    assert (shortfall.resource, shortfall.demand, shortfall.bound) == ("memory:DDR", 256, 200)
