"""Rival searches for tilings: what they find is sound, and no better than the best of all."""

from __future__ import annotations

import lower_toys as toys
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from test_lower_naive import conv_graph

from benchmarks.searches.__main__ import RIVALS
from benchmarks.searches.annealing import annealing
from benchmarks.searches.linear import Rows, summed, total, value
from benchmarks.searches.mixed_integers import cosa, milp
from benchmarks.searches.page import Cell, faults
from benchmarks.searches.problem import Budget, Outcome, Problem, Ran, problem_of, ran
from benchmarks.searches.product import climb, ours
from benchmarks.searches.program import Aim, Program, primes
from benchmarks.searches.sampling import exhaustive, random_draws
from worker.compiler.audit.audit import audit
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.tiling.nest.branch_bound import NEAR
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.plan import Plan
from worker.compiler.tiling.nest.search import MOST_LEAVES, score

SEARCHES = {"ours": ours, **RIVALS}
IN_SPACE = (random_draws, annealing, cosa, milp)
"""Those that look at tilings of the space only."""
size = st.integers(1, 10)
toys_of_all_kinds = st.one_of(
    st.builds(toys.matmul_graph, size, size, size, st.just(DType.F32)),
    st.builds(
        conv_graph, st.integers(1, 2), st.integers(3, 4), st.just(2), st.integers(1, 3), st.just(1)
    ),
)


def toy(graph: Graph, capacity: int, cores: int, objective: Objective) -> Problem:
    """A toy on one scratchpad."""
    try:
        return problem_of("toy", graph, toys.flat_machine(cores, capacity), objective)
    except ValueError:
        assume(False)
        raise


def product(preset: str = "simba") -> Problem:
    """A product on a machine, on two scratchpads of simba's."""
    return problem_of(
        f"toy on {preset}", toys.matmul_graph(16, 24, 32, DType.I8), load_preset(preset)
    )


def audited(problem: Problem, plan: Plan) -> None:
    """A tiling as the product would have it checked: axes covered, buffers that fit, no hazard."""
    schedule = Schedule(problem.graph, emit(plan, problem.machine.home.name), "tiles", 0)
    verify(schedule, problem.machine)
    audit(schedule, lower_unit(schedule, problem.machine, "s" * 64), problem.machine)


@COSTLY
@given(
    toys_of_all_kinds, st.sampled_from([160, 512, 4096]), st.integers(1, 4),
    st.sampled_from([Objective.LATENCY, Objective.ENERGY]),
)  # fmt: skip
def test_no_search_of_a_toys_space_is_below_its_optimum(
    graph: Graph, capacity: int, cores: int, objective: Objective
) -> None:
    """And ours is at it, but for what it does not look for."""
    problem = toy(graph, capacity, cores, objective)
    best = ran(exhaustive, problem, Budget(1))
    assume(best is not None)
    assert best is not None
    least = best.score
    assert least == best.outcome.bound
    assert least is not None
    own = ran(ours, problem, Budget(64))
    assert own is not None
    assert own.score is not None
    assert own.outcome.bound <= least * (1 + 1e-9)
    assert own.score <= least * NEAR * (1 + 1e-9)
    for search in IN_SPACE:
        found = ran(search, problem, Budget(64))
        assert found is not None
        assert found.tilings <= 64
        if found.score is not None:
            assert found.score >= least * (1 - 1e-9)


@pytest.mark.parametrize("name", sorted(SEARCHES))
def test_what_is_found_is_sound_and_found_again(name: str) -> None:
    problem = product()
    assert len(problem.stages) == 2
    first, again = (ran(SEARCHES[name], problem, Budget(200)) for _ in range(2))
    if name == "every":  # too many
        assert first is again is None
        return
    assert first is not None
    assert again is not None
    assert (first.outcome, first.tilings) == (again.outcome, again.tilings)
    assert first.outcome.plan is not None
    assert first.tilings > 0
    audited(problem, first.outcome.plan)


@pytest.mark.parametrize("preset", ["a100", "kapla-16x16", "stcp920-inferred"])
@pytest.mark.parametrize("search", [annealing, climb, cosa, milp])
def test_convolutions_have_sound_tilings(preset: str, search: object) -> None:
    """Windows overlap, beside their tensor's ends too."""
    problem = problem_of("conv", conv_graph(8, 14, 3, 16, 2), load_preset(preset))
    found = ran(search, problem, Budget(100))  # type: ignore[arg-type]
    assert found is not None
    assert found.outcome.plan is not None
    audited(problem, found.outcome.plan)


def test_budgets_are_kept_and_used() -> None:
    graph, machine = toys.matmul_graph(64, 96, 80), load_preset("a100")
    for search in (random_draws, annealing):
        problem = problem_of("large", graph, machine)
        runs = [ran(search, problem, Budget(most)) for most in (10, 300)]
        assert [run.tilings for run in runs if run is not None] == [10, 300]
        few, many = (run.score for run in runs if run is not None)
        assert few is not None
        assert many is not None
        assert many < few


def test_other_names_draw_others() -> None:
    graph, machine = toys.matmul_graph(64, 96, 80), load_preset("a100")
    names = ("one", "two")
    found = [ran(annealing, problem_of(n, graph, machine), Budget(5)) for n in names]
    plans = [run.outcome.plan for run in found if run is not None]
    assert len(plans) == 2
    assert plans[0] != plans[1]


@COSTLY
@given(st.sampled_from([256, 700, 4096]), st.booleans(), st.sampled_from(list(Aim)))
def test_a_programs_solution_fits_where_it_says_so(capacity: int, double: bool, aim: Aim) -> None:
    """Windows, copies and alignment included: its logarithms are never below the bytes."""
    graph = conv_graph(2, 6, 3, 4, 1)
    problem = toy(graph, capacity, 2, Objective.LATENCY)
    numbers = Program(problem, problem.orders[0], aim, double=double).fitting()
    if numbers is not None:
        sizes = problem.tilings.sized(numbers, 1, double=double)
        assert sizes is not None
        assert problem.plan(sizes) is not None
        for name, axis in numbers.items():
            assert problem.tilings.is_real(name, axis)


def test_rows_are_programs() -> None:
    rows = Rows()
    a, b = rows.variable(3.0, is_integer=True), rows.variable(9.0)
    rows.at_most({a: 2.0, b: 1.0}, 7.5)
    rows.charge({a: 3.0, b: 1.0}, -1.0)
    values = rows.solved()
    assert values is not None
    assert values.tolist() == pytest.approx([3.0, 1.5])
    assert value(total(({a: 1.0}, 2.0), (summed([{b: 1.0}, {b: 1.0}]), 1.0)), values) == 9.0
    rows.at_most({a: -1.0}, -4.0)
    assert rows.solved() is None


@given(st.integers(1, 10_000))
def test_primes_multiply_to_their_number(number: int) -> None:
    found = 1
    for prime, times in primes(number):
        assert all(prime % k for k in range(2, int(prime**0.5) + 1))
        found *= prime**times
    assert found == number


def test_what_is_below_the_bound_is_a_fault() -> None:
    problem = product("a100")
    own = ran(ours, problem, Budget(64))
    assert own is not None
    plan = own.outcome.plan
    assert plan is not None
    above = Ran(Outcome(plan, score(plan, MOST_LEAVES) * 1.1), 1, 0.1)
    cells = [
        Cell("x", "a100", "SMEM", Objective.LATENCY, base, {"milp": own}, {}, None)
        for base in (own, above)
    ]
    [fault] = faults(cells)
    assert fault.startswith("x on a100: milp")
