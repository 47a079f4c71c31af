"""A buffer that several operators fill like a grid is full when all of them have run."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from row_chain_graphs import build, fn, op
from toy_schedules import machine, rewrite, span

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import var
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.scalar import Fn, Read
from worker.compiler.schedule.nodes import Box, Compute, Move, Node, Place, Schedule, Seq
from worker.compiler.schedule.verify import verify

ROWS, COLS = 3, 2
SIZE = 4


def _piece(row: int, col: int) -> TensorOp:
    at = (var("i"), var("j"))
    target = (var("i") + row * SIZE, var("j") + col * SIZE)
    return op(
        f"p{row}{col}", [("i", SIZE), ("j", SIZE)], [("x", at)], ("t", target),
        fn(Fn.MUL, Read(0), 1.0 + row + ROWS * col),
    )  # fmt: skip


def _graph(pieces: list[tuple[int, int]]) -> Graph:
    shape = (ROWS * SIZE, COLS * SIZE)
    at = (var("i"), var("j"))
    last = op("last", [("i", shape[0]), ("j", shape[1])], [("t", at)], ("y", at),
              fn(Fn.NEG, Read(0)))  # fmt: skip
    ops = (*(_piece(*piece) for piece in pieces), last)
    return build(ops, {"x": (SIZE, SIZE), "t": shape, "y": shape}, ("y",))


def _schedule(graph: Graph) -> Schedule:
    piece: Box = (span(0, SIZE), span(0, SIZE))
    whole: Box = (span(0, ROWS * SIZE), span(0, COLS * SIZE))
    parts: list[Node] = [Move("x", "DDR", "L1", piece)]
    parts.extend(Compute(o.name, piece, "vec") for o in graph.ops[:-1])
    parts.extend((Compute("last", whole, "vec"), Move("y", "L1", "DDR", whole)))
    node: Node = Seq(tuple(parts))
    for tensor, box in (("y", whole), ("t", whole), ("x", piece)):
        node = Place(tensor, "L1", box, 1, node)
    return Schedule(graph, node, "hand", 0)


EVERY = list(product(range(ROWS), range(COLS)))


@pytest.mark.parametrize("order", [EVERY, EVERY[::-1], EVERY[1::2] + EVERY[::2]])
def test_a_grid_of_pieces_fills_a_buffer(order: list[tuple[int, int]]) -> None:
    verify(_schedule(_graph(order)), machine())


@pytest.mark.parametrize("missing", EVERY)
def test_a_grid_with_a_hole_is_refused(missing: tuple[int, int]) -> None:
    pieces = [piece for piece in EVERY if piece != missing]
    with pytest.raises(VerifyError, match=r"resident: t in .* is not written before its use"):
        verify(_schedule(_graph(pieces)), machine())


@pytest.mark.parametrize(
    ("piece", "computed", "read"),
    [((0, 0), (0, SIZE + 2), (0, SIZE + 2)), ((2, 0), (-2, SIZE + 2), (2 * SIZE - 2, SIZE + 2))],
)
def test_what_leaves_its_piece_fills_no_other(
    piece: tuple[int, int], computed: tuple[int, int], read: tuple[int, int]
) -> None:
    """A box may be longer than its axis: nothing is computed there."""
    schedule = _schedule(_graph([piece, *(other for other in EVERY if other != piece)]))
    cols = span(0, SIZE)
    name = f"p{piece[0]}{piece[1]}"

    def last(rows: tuple[int, int], begin: int) -> Compute:
        return Compute("last", (span(*rows), span(begin, SIZE)), "vec")

    def edit(node: Node) -> Node | None:
        if not isinstance(node, Seq):
            return None
        found: list[Node] = []
        for part in node.parts:
            if isinstance(part, Compute) and part.op == name:
                found += [Compute(name, (span(*computed), cols), "vec"), last(read, 0)]
            elif isinstance(part, Compute) and part.op == "last":
                first, rest = (0, read[0]), (sum(read), ROWS * SIZE - sum(read))
                found += [last(rows, 0) for rows in (first, rest) if rows[1]]
                found.append(last((0, ROWS * SIZE), SIZE))
            else:
                found.append(part)
        return Seq(tuple(found))

    with pytest.raises(VerifyError, match=r"resident: t in .* is not written before its use"):
        verify(replace(schedule, root=rewrite(schedule.root, edit)), machine())
