"""Directives by hand: the paper's quantities, what is refused, and a layer weighed by them."""

from __future__ import annotations

import pytest
from export_cases import conv_nest, matmul_nest, nest_of, one_core, two_cores
from kernel_toys import conv_graph, machine, matmul_graph
from naive_schedules import naive_schedule
from toy_schedules import row_fused

from worker.compiler.errors import InputError
from worker.compiler.export.directives.notation import parse_directives
from worker.compiler.export.directives.of_nest import write_directives
from worker.compiler.export.directives.tree import tree_of
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.signature import canonicalize
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.base import Budget
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.simulator.run import simulate_unit

ROWS = """layer mm(i=15, j=3, k=4)
at mme
  tensor a(i=1, k=4)
  tensor b(j=3, k=4)
  tensor c(i=1, j=3)
at L1
  tensor b(j=3, k=4)
  tensor a(i=1, k=4)
  tensor c(i=1, j=3)
  update(i+=1)
"""
"""15 steps along a row, three results each."""
NODES = """layer mm(i=64, j=96, k=8)
at mme
  tensor a(i=4, k=8)
  tensor b(j=6, k=8)
  tensor c(i=4, j=6)
at L1
  tensor a(i=4, k=8)
  tensor b(j=6, k=8)
  tensor c(i=4, j=6)
  stack(j+=6, 4)
  stack(i+=4, 4)
  update(j+=24)
  update(i+=16)
"""
"""As the paper has it for nodes: six filters each, four nodes, 24 at a time; then the next ones."""


def refused(text: str, graph_size: tuple[int, int, int] = (15, 3, 4)) -> str:
    with pytest.raises(InputError) as caught:
        tree_of(parse_directives(text), matmul_graph(*graph_size), two_cores())
    assert caught.value.code == "TW-DIRECTIVE-001"
    [finding] = caught.value.findings
    return f"{finding.pointer}: {finding.message}"


def test_amounts_of_an_output_row() -> None:
    """TV-KP-1: 15 updates that do not overlap, of three elements, are 45 elements moved."""
    graph, mach = matmul_graph(15, 3, 4), one_core()
    schedule = Schedule(graph, tree_of(parse_directives(ROWS), graph, mach), "directives", 0)
    [(_, text)] = write_directives((nest_of(schedule, mach),), mach).files
    lines = [line.strip() for line in text.splitlines()]
    assert "tensor c(i=1, j=3)  # 3 elements; drained to DDR 15 times: 45" in lines
    assert "tensor b(j=3, k=4)  # 12 elements; filled from DDR 1 times: 12" in lines


def test_neighbours_take_turns_as_in_the_paper() -> None:
    """A stack of four by six is an update of 24: core (p, q) has columns 6 q of each 24."""
    graph, mach = matmul_graph(64, 96, 8), machine(16)
    schedule = Schedule(graph, tree_of(parse_directives(NODES), graph, mach), "directives", 0)
    verify(schedule, mach)
    text = print_schedule(schedule)
    assert "loop cores c0_i 4 stride=4" in text
    assert "loop cores c1_j 4 stride=1" in text
    assert "[4*c0_i + 16*t2_i:4, 6*c1_j + 24*t3_j:6, 0:8]" in text


@pytest.mark.parametrize("preset", ["kapla-16x16", "simba", "a100", "eyeriss"])
def test_all_that_naive_offers_can_be_told_and_runs_the_same(preset: str) -> None:
    mach = load_preset(preset)
    for made in (
        matmul_graph(256, 512, 384, DType.F16),
        conv_graph(16, 32, 30, 3, 2, 1, DType.F16),
    ):
        graph = canonicalize(made).graph
        for schedule in NAIVE.candidates(graph, mach, budget=Budget(4)):
            assert isinstance(schedule, Schedule)
            export = write_directives((nest_of(schedule, mach),), mach)
            assert not export.refused
            [(_, text)] = export.files
            told = Schedule(graph, tree_of(parse_directives(text), graph, mach), "directives", 0)
            verify(told, mach)
            runs = [simulate_unit(lower_unit(x, mach, "0" * 64), mach) for x in (schedule, told)]
            assert runs[0].cycles == runs[1].cycles
            assert runs[0].traffic == runs[1].traffic


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("layer mm(i=15, j=3, k=4)\n", "", "line 1: at mme: a text begins with `layer"),
        ("layer mm(", "layer nn(", "the kernel's operator is mm"),
        ("i=15, j=3, k=4)\nat mme", "i=15, j=3)\nat mme", "the operator's axes are i=15, j=3, k=4"),
        ("at mme\n", "", "line 2: tensor a(i=1, k=4): `at MEMORY` comes first"),
        ("at mme", "at cube", "the innermost level is an engine: mme"),
        ("at L1", "at L9", "memories follow from the inside out"),
        ("tensor b(j=3, k=4)\n  tensor c", "tensor d(j=3)\n  tensor c",
         "tensor d: the operator's tensors are a, b, c"),
        ("update(i+=1)", "update(i+=2)", "1 steps of i are covered before it goes on"),
        ("update(i+=1)", "update(q+=1)", "the operator's axes are i, j, k"),
        ("update(i+=1)", "update(i+=0)", "line 10: update(i+=0): an update goes on by one"),
        ("update(i+=1)", "unroll(i, 3)", "line 10: unroll(i, 3): a line is"),
        ("update(i+=1)", "stack(i+=1, 2)", "2 of 15 steps of i are covered"),
        ("update(i+=1)", "update(i+=1)\n  stack(i+=1, 2)", "stacks stand before updates"),
        ("  tensor a(i=1, k=4)\n  tensor c(i=1, j=3)\n  update",
         "  tensor a(i=2, k=4)\n  tensor c(i=1, j=3)\n  update", "i=2, where 1 run inside of it"),
        ("  tensor a(i=1, k=4)\n  tensor c(i=1, j=3)\n  update",
         "  tensor a(i=1)\n  tensor c(i=1, j=3)\n  update", "its axes are i, k"),
        ("  tensor c(i=1, j=3)\n  update", "  tensor c(i=1, j=3) as f80\n  update",
         "f80 is no number format"),
        ("  tensor c(i=1, j=3)\n  update", "  tensor c(i=1, j=3) copies=0\n  update",
         "one copy at least"),
        ("  tensor c(i=1, j=3)\n  update", "  tensor c(i=1, j=3) as i8\n  update",
         "it is stored as f32"),
        ("  tensor a(i=1, k=4)\n  tensor c(i=1, j=3)\n  update",
         "  tensor a(i=1, k=4) as f64\n  tensor c(i=1, j=3)\n  update", "it is stored as f32"),
        ("  tensor c(i=1, j=3)\n  update", "  tensor c(i=1, j=3)\n  tensor c(i=1, j=3)\n  update",
         "a tensor stands in it twice"),
        ("  tensor c(i=1, j=3)\nat L1", "  tensor c(i=1, j=3)\n  tensor c(i=1, j=3)\nat L1",
         "at mme: a tensor stands in it twice"),
        ("  tensor c(i=1, j=3)\nat L1", "  tensor c(i=1, j=3) copies=2\nat L1",
         "not of an instruction's box"),
        ("  tensor c(i=1, j=3)\nat L1", "  tensor c(i=1, j=3) as f16\nat L1",
         "not of an instruction's box"),
        ("update(i+=1)", f"update(i+={'9' * 5000})", "line 10"),
        ("i=15, j=3, k=4)", f"i=15, j=3, k={'4' * 5000})", "line 1"),
        ("i=15, j=3, k=4)", "i=15, i=3, k=4)",
         "line 1: layer mm(i=15, i=3, k=4): `i=3` is no axis"),
    ],
)  # fmt: skip
def test_what_says_no_schedule_is_refused_where_it_stands(old: str, new: str, said: str) -> None:
    assert old in ROWS
    text = ROWS.replace(old, new, 1)
    assert said in refused(text)


def test_sums_are_done_before_they_leave() -> None:
    head, box, held = ROWS.partition("at mme\n")
    told = head + box + held.replace("k=4", "k=2")
    inner = told.replace("  update(i+=1)", "  update(i+=1)\n  update(k+=2)")
    assert "sums would leave it before they are done" in refused(inner)
    cores = told.replace("  update(i+=1)", "  stack(k+=2, 2)\n  update(i+=1)")
    assert "cores would each have a part of every sum over k" in refused(cores)


def test_parts_that_do_not_lie_side_by_side_are_no_buffer() -> None:
    head, box, held = NODES.partition("at L1\n")
    text = head + "  update(j+=24)\n" + box + held.replace("  update(j+=24)\n", "")
    assert "do not lie side by side" in refused(text, (64, 96, 8))


def test_a_kernel_of_several_operators_has_no_directives() -> None:
    schedule, *_ = row_fused()
    with pytest.raises(InputError) as caught:
        tree_of(parse_directives(ROWS), schedule.graph, one_core())
    assert "the kernel runs several operators: mm, relu" in caught.value.findings[0].message


def test_padding_and_strides_are_told_and_read_again() -> None:
    for nest in (matmul_nest(), conv_nest()):
        assert not write_directives((nest,), one_core()).refused
    schedule = naive_schedule(conv_graph(3, 4, 9, 3, 2, 1), one_core())
    graph = schedule.graph
    [(_, text)] = write_directives((nest_of(schedule, one_core()),), one_core()).files
    assert "# t0[a4, 2*a2 + a5 - 1, 2*a3 + a6 - 1]" in text
    told = Schedule(graph, tree_of(parse_directives(text), graph, one_core()), "directives", 0)
    fills = [line for line in print_schedule(told).splitlines() if "fill=" in line]
    assert fills == [line for line in print_schedule(schedule).splitlines() if "fill=" in line]
