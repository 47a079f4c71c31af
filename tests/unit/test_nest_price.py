"""What a search for tiles asks of the machine does not grow with the tilings that it tries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from toy_schedules import machine as toy_machine

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.nest import price
from worker.compiler.tiling.nest.facts import Facts, facts_of
from worker.compiler.tiling.nest.levels import Frame, Sizes, levels_of
from worker.compiler.tiling.nest.plan import stages_of
from worker.compiler.tiling.nest.price import Price, Pricer
from worker.compiler.tiling.nest.search import loop_orders, ordered_plan, search


def matmul(size: int) -> Facts:
    op = TensorOp(
        "mm", (Axis("m", size), Axis("n", size), Axis("k", size, AxisKind.REDUCE)),
        (Access("a", (var("m"), var("k"))), Access("b", (var("k"), var("n")))),
        Access("c", (var("m"), var("n"))), Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD,
        Origin((), "unit"),
    )  # fmt: skip
    return facts_of(op, {name: Tensor(name, (size, size), DType.F32) for name in "abc"})


class Counts:
    """Calls of what is looked up once, and of what is done per tiling."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: Counter[str] = Counter()
        route, pace, priced, ordered = Machine.route, price.pace_of, Pricer.price, Price.of

        def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                self.of[name] += 1
                return call(*args)

            return run

        monkeypatch.setattr(Machine, "route", counted("route", route))
        monkeypatch.setattr(price, "pace_of", counted("pace", pace))
        monkeypatch.setattr(Pricer, "price", counted("tilings", priced))
        monkeypatch.setattr(Price, "of", counted("orders", ordered))


@pytest.mark.parametrize("size", [64, 1024])
def test_routes_and_paces_are_looked_up_once_per_search(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = toy_machine()
    counts = Counts(monkeypatch)
    memories = tuple(machine.scratchpads)
    plan = search(matmul(size), machine.engines[0], stages_of(machine, memories), machine)
    assert plan is not None
    assert counts.of["route"] <= 2 * len(memories)  # from where it is filled, to where it drains
    assert counts.of["pace"] == 1
    assert counts.of["tilings"] >= 5


def test_a_tiling_is_priced_once_for_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, facts = toy_machine(), matmul(64)
    stages = stages_of(machine, tuple(machine.scratchpads))
    tile = dict.fromkeys(facts.extents, 4)
    levels = levels_of(Frame(facts, stages), Sizes(tuple(tile for _ in stages), False))
    assert levels is not None
    pricer = Pricer(facts, machine.engines[0], stages, machine)
    counts = Counts(monkeypatch)
    ordered_plan(pricer, levels, loop_orders(pricer.facts))
    assert counts.of["tilings"] == 1
    assert 1 < counts.of["orders"] <= len(loop_orders(facts))
