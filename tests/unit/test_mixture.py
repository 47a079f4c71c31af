"""The cheapest way through a region, against every way there is (brute force)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.judge.mixture import Chosen, Cost, State, cheapest, states_of
from worker.compiler.schedule.stages import Group, Grouping

ORIGIN = Origin((), "unit")


def pointwise(name: str, reads: Sequence[str], result: str, start: int = 0) -> TensorOp:
    """result[i + start] = max over the operands at i."""
    body = Read(0) if len(reads) == 1 else Apply(Fn.MAX, (Read(0), Read(1)))
    index = (var("i") + start,) if start else (var("i"),)
    accesses = tuple(Access(r, (var("i"),)) for r in reads)
    return TensorOp(name, (Axis("i", 4),), accesses, Access(result, index), body, None, ORIGIN)


def graph_of(ops: Sequence[TensorOp], outputs: Sequence[str], sizes: dict[str, int]) -> Graph:
    made = {op.write.tensor for op in ops}
    names = dict.fromkeys([*(a.tensor for op in ops for a in op.reads), *made])
    tensors = tuple(Tensor(n, (sizes.get(n, 4),), DType.F32) for n in names)
    inputs = tuple(n for n in names if n not in made)
    return Graph.build(tuple(ops), tensors, inputs, tuple(outputs))


CHAIN = graph_of(
    [pointwise(f"op{k}", [f"t{k}"], f"t{k + 1}") for k in range(4)], ["t4"], {}
)  # t0 -> t1 -> t2 -> t3 -> t4


def grouped(graph: Graph, *groups: str) -> Grouping:
    return Grouping(graph, tuple(Group(tuple(names.split())) for names in groups))


def names(state: State | None) -> set[str] | None:
    return None if state is None else {tensor.name for tensor in state}


def test_a_state_is_what_was_written_and_is_read_later() -> None:
    found = states_of(grouped(CHAIN, "op0 op1", "op2", "op3"))
    assert [names(state) for state in found] == [set(), {"t2"}, {"t3"}, {"t4"}]


def test_results_stay_in_the_state_and_what_is_used_up_leaves_it() -> None:
    ops = [pointwise("a", ["x"], "y"), pointwise("b", ["y"], "z"), pointwise("c", ["z", "y"], "w")]
    graph = graph_of(ops, ["y", "w"], {})
    found = states_of(grouped(graph, "a", "b", "c"))
    assert [names(state) for state in found] == [set(), {"y"}, {"y", "z"}, {"y", "w"}]


def test_nobody_goes_on_from_a_tensor_that_is_written_in_part() -> None:
    ops = [pointwise("a", ["x"], "y"), pointwise("b", ["x"], "y", 4), pointwise("c", ["y"], "z")]
    found = states_of(grouped(graph_of(ops, ["z"], {"y": 8}), "a", "b", "c"))
    assert [names(state) for state in found] == [set(), None, {"y"}, {"z"}]


def test_the_best_of_both_where_they_meet() -> None:
    covers = [grouped(CHAIN, "op0 op1", "op2 op3"), grouped(CHAIN, "op0", "op1", "op2", "op3")]
    states = [states_of(cover) for cover in covers]
    costs: list[list[Cost]] = [[(5.0,), (9.0,)], [(3.0,), (4.0,), (3.0,), (4.0,)]]
    assert cheapest(states, costs) == (Chosen(0, 0), Chosen(1, 2), Chosen(1, 3))


def test_equal_ways_go_to_the_first() -> None:
    covers = [grouped(CHAIN, "op0 op1 op2 op3"), grouped(CHAIN, "op0", "op1 op2 op3")]
    costs: list[list[Cost]] = [[(6.0,)], [(3.0,), (3.0,)]]
    assert cheapest([states_of(cover) for cover in covers], costs) == (Chosen(0, 0),)


def test_tensors_of_one_name_and_two_shapes_are_no_meeting() -> None:
    wide = graph_of(CHAIN.ops, ["t4"], {"t2": 9})  # type: ignore[arg-type]
    covers = [grouped(CHAIN, "op0 op1", "op2 op3"), grouped(wide, "op0 op1", "op2 op3")]
    costs: list[list[Cost]] = [[(1.0,), (9.0,)], [(9.0,), (1.0,)]]
    found = cheapest([states_of(cover) for cover in covers], costs)
    assert len({chosen.entrant for chosen in found}) == 1


Place = tuple[int, int]
"""Of an entrant: how many of its groups have run."""


def every_way(
    states: Sequence[Sequence[State | None]], costs: Sequence[Sequence[Cost]]
) -> Iterator[tuple[Cost, tuple[Chosen, ...]]]:
    """All ways without a circle, by recursion over positions."""
    last = [len(own) for own in costs]

    def same(a: tuple[int, int], b: tuple[int, int]) -> bool:
        left, right = states[a[0]][a[1]], states[b[0]][b[1]]
        return a == b or (left is not None and left == right)

    positions = [(e, k) for e in range(len(costs)) for k in range(last[e] + 1)]

    def walk(
        at: tuple[int, int],
        total: Cost,
        path: tuple[Chosen, ...],
        seen: tuple[tuple[int, int], ...],
    ) -> Iterator[tuple[Cost, tuple[Chosen, ...]]]:
        here = [p for p in positions if same(p, at)]
        if any(k == last[e] for e, k in here):
            yield total, path
            return
        for entrant, number in here:
            end = (entrant, number + 1)
            if any(same(end, before) for before in seen):
                continue
            cost = costs[entrant][number]
            sums = tuple(a + b for a, b in zip(total, cost, strict=True))
            yield from walk(end, sums, (*path, Chosen(entrant, number)), (*seen, end))

    width = len(costs[0][0])
    yield from walk((0, 0), (0.0,) * width, (), ((0, 0),))


@st.composite
def covers_of_a_chain(draw: st.DrawFn) -> tuple[list[Grouping], list[list[Cost]]]:
    length = draw(st.integers(1, 6))
    ops = [pointwise(f"op{k}", [f"t{k}"], f"t{k + 1}") for k in range(length)]
    graph = graph_of(ops, [f"t{length}"], {})
    covers, costs = [], []
    for _ in range(draw(st.integers(1, 3))):
        cuts = [0, *sorted(draw(st.sets(st.integers(1, length)))), length]
        groups = [" ".join(op.name for op in ops[a:b]) for a, b in pairwise(cuts) if a < b]
        covers.append(grouped(graph, *groups))
        cost = st.tuples(st.integers(0, 1), st.integers(0, 9)).map(lambda c: tuple(map(float, c)))
        costs.append([draw(cost) for _ in groups])
    return covers, costs


@given(covers_of_a_chain())
def test_no_way_is_cheaper(drawn: tuple[list[Grouping], list[list[Cost]]]) -> None:
    covers, costs = drawn
    states = [states_of(cover) for cover in covers]
    found = cheapest(states, costs)
    total = tuple(sum(costs[c.entrant][c.group][k] for c in found) for k in range(2))
    assert total == min(cost for cost, _ in every_way(states, costs))
    ops = [name for c in found for name in covers[c.entrant].groups[c.group].ops]
    assert ops == [op.name for op in covers[0].graph.ops]  # each once, in order
