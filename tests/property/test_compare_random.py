"""Comparisons of random networks: renamed and permuted they are equal, edits are all there is."""

from __future__ import annotations

from typing import Any

from compared_runs import group, kernel, node, run
from hypothesis import given
from hypothesis import strategies as st

from service.compare import ReasonKind, RowKind, Verdict, compare
from service.compare.cover import paired

Nodes = list[dict[str, Any]]


@st.composite
def networks(draw: st.DrawFn, least: int = 1) -> Nodes:
    """A random graph; about every second node has weights, some nodes are twins of others."""
    count = draw(st.integers(least, 14))
    nodes: Nodes = []
    for k in range(count):
        others = [each["name"] for each in nodes]
        reads = draw(st.lists(st.sampled_from(others), max_size=2)) if others else []
        has_weights = draw(st.booleans())
        nodes.append(
            node(f"n{k}", draw(st.sampled_from(["Conv", "Relu", "Add"])), reads,
                 weights=f"w{k}" if has_weights else "")
        )  # fmt: skip
    return nodes


def order(draw: st.DrawFn, nodes: Nodes) -> Nodes:
    """The nodes in another topological order."""
    left, done, found = list(nodes), {"image"}, []
    while left:
        ready = [n for n in left if all(i in done or i.endswith(".w") for i in n["inputs"])]
        chosen = draw(st.sampled_from(ready))
        left.remove(chosen)
        done.update(chosen["outputs"])
        found.append(chosen)
    return found


def renamed(nodes: Nodes) -> Nodes:
    """Every node and tensor with another name."""

    def other(name: str) -> str:
        return name if name == "image" else "x_" + name[::-1].replace(".", "_")

    return [
        {**n, "name": other(n["name"]), "inputs": [other(i) for i in n["inputs"]],
         "outputs": [other(o) for o in n["outputs"]]} for n in nodes
    ]  # fmt: skip


def cycles(each: dict[str, Any]) -> int:
    """By what the node is, so that twins take as long."""
    weights = int(each["weights"][1:]) if each["weights"] else 0
    return 100 * len(each["op_type"]) + 10 * len(each["inputs"]) + weights


def one_kernel(nodes: Nodes) -> list[dict[str, Any]]:
    return [kernel(*(group([n["name"]], PE=cycles(n)) for n in nodes), launch=7)]


@given(st.data(), networks())
def test_renamed_and_permuted_there_is_no_difference(data: st.DataObject, nodes: Nodes) -> None:
    others = renamed(data.draw(st.composite(order)(nodes)))
    found = compare(run(nodes, one_kernel(nodes)), run(others, one_kernel(others)))
    assert found.verdict is Verdict.SAME, found.headline
    assert found.reasons == ()
    assert found.nodes.renamed == len(nodes)
    assert {row.kind for row in found.layers} == {RowKind.SAME}


@given(st.data(), networks(least=2), st.booleans())
def test_a_changed_node_is_the_only_difference(
    data: st.DataObject, nodes: Nodes, is_renamed: bool
) -> None:
    at = data.draw(st.sampled_from([k for k, n in enumerate(nodes) if n["weights"]] or [0]))
    edited = [dict(each) for each in nodes]
    edited[at]["attributes"] = {"pads": [1, 1]}
    others = renamed(edited) if is_renamed else edited
    found = compare(run(nodes, one_kernel(nodes)), run(others, one_kernel(others)))
    if is_renamed and not nodes[at]["weights"]:
        return  # a node that has a twin, and a new name, is nobody's
    (reason,) = found.reasons
    assert (reason.kind, reason.where) == (ReasonKind.MODEL, "attribute pads")
    assert reason.nodes == (others[at]["name"],)
    assert found.verdict is Verdict.SAME  # it takes as long


@given(st.data(), networks(least=2))
def test_an_inserted_node_is_the_only_difference(data: st.DataObject, nodes: Nodes) -> None:
    at = data.draw(st.integers(0, len(nodes) - 1))
    before = nodes[at]["name"]
    fresh = node("fresh", "Sigmoid", [before])
    behind = [
        {**n, "inputs": ["fresh.out" if i == f"{before}.out" else i for i in n["inputs"]]}
        for n in nodes[at + 1 :]
    ]
    edited = [*nodes[: at + 1], fresh, *behind]
    found = compare(run(nodes, one_kernel(nodes)), run(edited, one_kernel(edited)))
    assert found.nodes.added == ("fresh",) and found.nodes.removed == ()
    assert [row.nodes for row in found.moved if not row.is_rest] == [("fresh",)]
    assert found.delta_cycles == cycles(fresh)
    first = found.reasons[0]
    assert (first.kind, first.where, first.nodes) == (ReasonKind.MODEL, "added", ("fresh",))


@st.composite
def partitions(draw: st.DrawFn) -> list[list[frozenset[int]]]:
    """Two lists of covers of the same few nodes, that may overlap, repeat and leave nodes out."""
    cover = st.frozensets(st.integers(0, 6), min_size=1, max_size=4)
    return [draw(st.lists(cover, max_size=7)) for _ in range(2)]


@given(partitions())
def test_rows_are_in_one_pair_each_and_pairs_cover_the_same(
    sides: list[list[frozenset[int]]],
) -> None:
    base, head = sides
    pairs = paired(base, head)
    assert sorted(b for pair in pairs for b in pair[0]) == [*range(len(base))]
    assert sorted(h for pair in pairs for h in pair[1]) == [*range(len(head))]
    shared = frozenset[int]().union(*base) & frozenset[int]().union(*head)
    for left, right in pairs:
        covers = [frozenset[int]().union(*(rows[k] for k in places))
                  for rows, places in ((base, left), (head, right))]  # fmt: skip
        assert covers[0] & shared == covers[1] & shared


@given(partitions())
def test_a_run_has_no_difference_from_itself(sides: list[list[frozenset[int]]]) -> None:
    assert all(left == right and len(left) == 1 for left, right in paired(sides[0], sides[0]))


@given(st.data(), networks(least=2))
def test_cycles_sum_to_the_total_however_kernels_are_cut(data: st.DataObject, nodes: Nodes) -> None:
    def cut() -> list[dict[str, Any]]:
        names = [n["name"] for n in nodes]
        layers, at = [], 0
        while at < len(names):
            size = data.draw(st.integers(1, len(names) - at))
            groups = [group([n], PE=data.draw(st.integers(0, 50)), DRAM=3)
                      for n in names[at : at + size]]  # fmt: skip
            layers.append(kernel(*groups, launch=data.draw(st.integers(0, 9))))
            at += size
        return layers

    base, head = run(nodes, cut()), run(nodes, cut())
    found = compare(base, head)
    assert sum(row.base_cycles for row in found.layers) == base.cycles
    assert sum(row.head_cycles for row in found.layers) == head.cycles
    assert sum(row.delta_cycles for row in found.causes) == found.delta_cycles
    for row in found.layers:
        assert sum(cause.delta_cycles for cause in row.causes) == row.delta_cycles
    for side, rows in (("base_rows", base.rows), ("head_rows", head.rows)):
        assert sorted(k for row in found.layers for k in getattr(row, side)) == [*range(len(rows))]
    assert sum(row.base_cycles for row in found.kernels) == base.cycles
    assert sum(row.head_cycles for row in found.kernels) == head.cycles
