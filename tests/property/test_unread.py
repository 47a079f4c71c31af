"""Fills that nothing reads are not emitted, against a brute force over all iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from lower_toys import (
    cluster_machine,
    cores,
    flat_machine,
    matmul_graph,
    naive_matmul,
    span,
    time,
)

from worker.compiler.audit.audit import audit
from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import var
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.isa.program import UnitProgram, expanded
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Init, Move, Place, Schedule, Seq
from worker.compiler.schedule.unread import Bools, Unread
from worker.compiler.schedule.walk import (
    Leaf,
    Scope,
    Walk,
    compute_ends,
    move_ends,
    walk,
)

Entry = tuple[int, tuple[int, ...]]
"""A scope, and the counters of the loops around it."""


def two_levels(m: int, n: int, k: int, part: int, *, fill: int | None) -> Schedule:
    """Rows of t0 and all of t1 for a cluster, parts of them for its cores, as cores take rows."""
    row = 2 * part
    rows = var("g") * 2 * row + var("u") * row
    a1, b1 = (span(rows, row), span(0, k)), (span(0, k), span(0, n))
    mine = rows + var("c") * part
    a2, b2 = (span(mine, part), span(0, k)), (span(0, k), span(0, n))
    out = (span(mine, part), span(0, n))
    core = Place("t0", "L1", a2, 2, Place("t1", "L1", b2, 2, Place("t2", "L1", out, 1, Seq((
        Move("t0", "LLB", "L1", a2, fill), Move("t1", "LLB", "L1", b2, fill),
        Compute("op0", (*out, span(0, k)), "mme"), Move("t2", "L1", "DDR", out),
    )), DType.F32, Init.IDENTITY)))  # fmt: skip
    cluster = Place("t0", "LLB", a1, 2, Place("t1", "LLB", b1, 2, Seq((
        Move("t0", "DDR", "LLB", a1, fill), Move("t1", "DDR", "LLB", b1, fill),
        cores("c", 2, core),
    ))))  # fmt: skip
    return Schedule(matmul_graph(m, n, k), cores("g", 2, time("u", 2, cluster), 2), "hand", 0)


def emitted(schedule: Schedule, machine: Machine, most_rows: int = 1 << 30) -> Counter[int]:
    """Instructions of every leaf that is a move, of a program that is verified and audited."""
    program = lower_unit(schedule, machine, "s", most_rows)
    verify_program(program, machine)
    audit(schedule, program, machine)
    return per_leaf(expanded(program))


def per_leaf(program: UnitProgram) -> Counter[int]:
    return Counter(program.instructions["node"].tolist())


def by_brute_force(nest: Walk, machine: Machine) -> Counter[int]:
    """Iterations of every leaf that work, or bring what one that works takes."""
    wanted: set[Entry] = set()
    while True:
        found: Counter[int] = Counter()
        before = len(wanted)
        for leaf in nest.leaves:
            reads, write = ends(nest, leaf, machine)
            for digits in product(*(range(f.trip) for f in leaf.frames)):
                at = dict(zip((f.var for f in leaf.frames), digits, strict=True))
                if not works(nest, leaf, at):
                    continue
                if isinstance(leaf.node, Move) and write and entry(write, at) not in wanted:
                    continue
                found[leaf.number] += 1
                wanted |= {entry(scope, at) for scope in reads if scope}
        if len(wanted) == before:
            return found


def entry(scope: Scope, at: dict[str, int]) -> Entry:
    return scope.number, tuple(at[f.var] for f in scope.frames)


def ends(nest: Walk, leaf: Leaf, machine: Machine) -> tuple[list[Scope | None], Scope | None]:
    """`None` also where computes write: they are not dropped."""
    if isinstance(leaf.node, Move):
        found = move_ends(leaf, leaf.node, machine.home.name)
        assert not isinstance(found, str)
        return list(found.reads), found.write
    return list(compute_ends(leaf, leaf.node, nest.schedule.graph, machine).reads), None


def works(nest: Walk, leaf: Leaf, at: dict[str, int]) -> bool:
    if isinstance(leaf.node, Move):
        if leaf.node.fill is not None:
            return True
        sizes = nest.schedule.graph.tensors[leaf.node.tensor].shape
    else:
        sizes = tuple(a.extent for a in nest.schedule.graph.op(leaf.node.op).domain)
    starts = [int(affine_values(s.start, at)) for s in leaf.node.box]
    return all(
        start < size and start + part.extent > 0
        for start, part, size in zip(starts, leaf.node.box, sizes, strict=True)
    )


@COSTLY
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(2, 4)), st.integers(1, 4),
)  # fmt: skip
def test_a_product_brings_what_its_tiles_take(
    shape: tuple[int, int, int], tiles: tuple[int, int, int], num_cores: int
) -> None:
    schedule, machine = naive_matmul(*shape, tiles, num_cores), flat_machine(num_cores)
    assert emitted(schedule, machine) == by_brute_force(walk(schedule), machine)


@COSTLY
@given(st.integers(1, 8), st.integers(1, 3), st.sampled_from([None, 0]))
def test_through_two_memories(m: int, part: int, fill: int | None) -> None:
    """The outer fill is for who takes from the inner ones."""
    schedule, machine = two_levels(m, 3, 2, part, fill=fill), cluster_machine()
    assert emitted(schedule, machine) == by_brute_force(walk(schedule), machine)


def test_cores_without_rows_bring_no_weights() -> None:
    """16 tiles of 2 rows in turns of 3 x 6: the last core has 4 tiles of its 6."""
    schedule, machine = naive_matmul(32, 8, 8, (2, 4, 4), 3), flat_machine(3)
    assert sorted(emitted(schedule, machine).values()) == [16 * 2, *3 * [16 * 2 * 2]]


def test_loops_end_where_cores_run_out_of_work() -> None:
    """More tiles than are listed: what the last core does not bring is left out of the loops."""
    schedule, machine = naive_matmul(2 * 100, 4, 4 * 40, (2, 4, 4), 3), flat_machine(3)
    assert len(lower_unit(schedule, machine, "s", 0).loops.table)
    assert emitted(schedule, machine, 0) == by_brute_force(walk(schedule), machine)


@pytest.mark.parametrize("most_rows", [0, 1 << 30])
def test_the_audit_misses_what_is_dropped_and_read(
    monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    """It asks the same rule what to expect, but not whether all that is read is there."""
    schedule, machine = naive_matmul(64, 4, 64, (2, 4, 4), 2), flat_machine(2)
    nest = walk(schedule)
    (weights,) = (leaf.number for leaf in nest.leaves if leaf.path == "0.0.0.0.0.0.0.0.0.1")

    def wrong(_: Unread, number: int, values: Mapping[str, Ints]) -> Bools | None:
        return affine_values(var("i") - 3, values) != 0 if number == weights else None

    monkeypatch.setattr(Unread, "wanted", wrong)
    program = lower_unit(schedule, machine, "s", most_rows)
    with pytest.raises(VerifyError, match="reads elements that nothing has written"):
        audit(schedule, program, machine)
