"""Dependences by tile: where slots are cut, and that layers overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiled_schedules import WIDTH, Made, two_layers

from worker.compiler.audit.audit import audit
from worker.compiler.clock.run import run_unit
from worker.compiler.errors import VerifyError
from worker.compiler.heuristics import Heuristic
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.issue import users_of
from worker.compiler.lower.lower import lower_unit
from worker.compiler.lower.resolve import flatten, resolve
from worker.compiler.lower.rows import tiles
from worker.compiler.lower.rows.hazards import home_hazards, ordered_writes
from worker.compiler.lower.rows.reach import Place
from worker.compiler.lower.rows.tiles import MOST_MET, MOST_PIECES, TilePieces, tile_pieces
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify

LOAD_OF_X1 = "0.0.0.1.0.1.0.0.0.0"
"""What the second layer begins with."""
SHAPES: dict[str, dict[str, int]] = {
    "tiles alike": {},
    "windows": {"halo": 1},
    "large tiles read": {"read_height": 8},
    "small tiles read": {"height": 8, "read_height": 4, "tiles": 4},
    "tiles that fit each other nowhere": {"height": 3, "read_height": 4},
    "sums in two parts": {"parts": 2},
    "columns of two cores": {"cores": 2, "tiles": 4},
}


def lowered(made: Made, *without: Heuristic) -> UnitProgram:
    """Verified and audited."""
    schedule, machine = made
    verify(schedule, machine)
    chosen = Schedule(schedule.graph, schedule.root, "hand", 0, without)
    program = lower_unit(chosen, machine, "s")
    verify_program(program, machine)
    audit(chosen, program, machine)
    return program


def ends(program: UnitProgram, machine: Machine) -> tuple[int, int, int]:
    """(start of the second layer's first compute, end of the first layer's last one, of all)."""
    run = run_unit(program, machine)
    row = program.instructions[run.row]
    is_compute = row["opcode"] == int(Opcode.COMPUTE)
    on = np.array([stream.engine for stream in program.streams])[row["stream"]]
    end = run.begin + row["cycles"]
    return (
        int(run.begin[is_compute & (on == "vec")].min()),
        int(end[is_compute & (on == "mme")].max()),
        run.cycles,
    )


@pytest.mark.parametrize(
    ("name", "memory"), [*((n, "GB") for n in SHAPES), ("tiles alike", "DDR"), ("windows", "DDR")]
)
def test_the_second_layer_begins_before_the_first_has_ended(name: str, memory: str) -> None:
    made = two_layers(**SHAPES[name], memory=memory)
    begin, end, cycles = ends(lowered(made), made[1])
    late_begin, late_end, late_cycles = ends(lowered(made, Heuristic.TILES), made[1])
    assert begin < end
    assert late_begin >= late_end
    assert cycles < late_cycles


def test_a_tile_waits_for_the_tiles_that_its_window_meets() -> None:
    """Row tiles of 4 in 132 cycles each; the first one that has a halo of a row meets two tiles."""
    ready = {}
    for halo in (0, 1, 5):
        made = two_layers(halo=halo)
        program = lowered(made)
        run = run_unit(program, made[1])
        row = program.instructions[run.row]
        stores = np.flatnonzero(
            np.char.startswith(row_nodes(program)[run.row], "0.0.0.0")
            & (row["opcode"] == int(Opcode.STORE))
        )
        signals = [
            set(program.signal_token[program.signal_ptr[k] : program.signal_ptr[k + 1]].tolist())
            for k in run.row[stores].tolist()
        ]
        first = int(np.flatnonzero(row_nodes(program) == LOAD_OF_X1)[0])
        waits = program.wait_token[program.wait_ptr[first] : program.wait_ptr[first + 1]]
        ready[halo] = sum(bool(s & set(waits.tolist())) for s in signals)
    assert ready == {0: 1, 1: 2, 5: 3}


def row_nodes(program: UnitProgram) -> np.ndarray[Any, Any]:
    """[rows] Path of each instruction's leaf."""
    return np.array(program.nodes)[program.instructions["node"]]


def cut(made: Made, tensor: str = "x1") -> TilePieces | None:
    """How the tensor between the layers is cut."""
    schedule, machine = made
    nest = flatten(schedule, machine)
    refs = resolve(nest, machine)
    outer = [s for s in nest.scopes if s.tensor == tensor and s.memory == "GB"]
    if not outer:
        users = [
            n for n, r in enumerate(refs)
            if any(o.scope is None and o.tensor == tensor for o in (*r.reads, r.write))
        ]  # fmt: skip
        ordered = tensor not in home_hazards(nest, refs).disjoint
        place = Place.of_home(nest, tensor)
        return tile_pieces(nest, refs, place, users, are_ordered=ordered)[0]
    (scope,) = outer
    users = users_of(refs)[scope.number]
    ordered = ordered_writes(nest, refs, scope.number, users)
    return tile_pieces(nest, refs, Place.of_scope(scope), users, are_ordered=ordered)[0]


def starts(pieces: TilePieces | None) -> dict[int, list[int]]:
    """By dimension that is cut."""
    assert pieces is not None
    return {
        d: start.tolist()
        for d, start in zip(pieces.dims, pieces.starts, strict=True)
        if len(start) > 1
    }


@pytest.mark.parametrize("memory", ["GB", "DDR"])
def test_slots_are_cut_where_that_keeps_somebody_apart(memory: str) -> None:
    """Writes of four rows each; columns are all read together, so they are not cut."""
    fours = list(range(0, 32, 4))
    assert starts(cut(two_layers(memory=memory))) == {0: fours}
    assert starts(cut(two_layers(cores=2, memory=memory))) == {0: fours}
    assert starts(cut(two_layers(read_height=8, memory=memory))) == {0: [0, 8, 16, 24]}
    assert starts(cut(two_layers(halo=1, memory=memory))) == {0: fours}
    # Windows of 18 rows: what is far enough inside of each lies together.
    wide = two_layers(read_height=16, halo=1, memory=memory)
    assert starts(cut(wide)) == {0: [0, 12, 20]}
    assert cut(two_layers(read_height=32, memory=memory)) is None
    assert cut(two_layers(tiles=1, height=32, read_height=4, memory=memory)) is None


def test_pieces_are_few() -> None:
    """Both limits, and what is met is at most what one access may meet."""
    many = cut(two_layers(tiles=2 * MOST_PIECES, height=1, read_height=1))
    assert starts(many) == {0: list(range(0, 2 * MOST_PIECES, 2))}
    wide = two_layers(tiles=128, height=1, read_height=1, halo=MOST_MET)
    pieces = cut(wide)
    assert pieces is not None
    low, high = np.arange(128) - MOST_MET, np.arange(128) + MOST_MET + 1
    found = np.stack(list(pieces.met([np.maximum(low, 0)], [np.minimum(high, 128)])))
    assert 2 <= (found >= 0).sum(axis=0).max() <= MOST_MET
    lowered(wide)


def test_a_slot_whose_values_are_not_all_read_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited for the readers of its pieces has not waited for who wrote the others."""
    assert starts(cut(two_layers(slices=3))) == {0: list(range(0, 32, 4))}
    assert starts(cut(two_layers(read_columns=WIDTH // 2, cores=2)))
    unread = two_layers(slices=3, read_columns=WIDTH // 2, cores=2)
    assert cut(unread) is None
    lowered(unread)
    monkeypatch.setattr(tiles, "are_read", lambda *_: True)
    with pytest.raises(VerifyError, match="may start before its place is free"):
        lowered(unread)


@pytest.mark.parametrize(("read_rows", "is_ordered"), [(32, False), (30, False), (26, True)])
def test_writes_keep_their_order_where_a_value_may_have_no_reader(
    read_rows: int, is_ordered: bool
) -> None:
    """A transfer whose reader is cut to nothing: no reader keeps the next one behind it.  Moved in
    front of it, that one's value was lost (basic_pitch on stcp920-inferred; the audit refused)."""
    made = two_layers(read_rows=read_rows)
    nest = flatten(*made)
    refs = resolve(nest, made[1])
    (tile,) = (
        s for s in nest.scopes
        if s.memory == "L1" and s.tensor == "x1" and any(f.var == "v" for f in s.frames)
    )  # fmt: skip
    assert ordered_writes(nest, refs, tile.number, users_of(refs)[tile.number]) == is_ordered
    lowered(made)


def test_the_next_value_waits_for_the_last_reader_of_the_one_before() -> None:
    made = two_layers(slices=3)
    program = lowered(made)
    _, _, cycles = ends(program, made[1])
    _, _, late = ends(lowered(made, Heuristic.TILES), made[1])
    assert cycles < late


def test_a_piece_is_met_where_boxes_overlap_it() -> None:
    """Numbers of pieces against the definition, for all boxes of a small grid."""
    edges = (np.array([0, 3, 4]), np.array([0, 2]))
    pieces = TilePieces((0, 2), edges, is_used_again=False)
    boxes = [
        (a, b, c, d) for a in range(6) for b in range(a + 1, 7) for c in range(4)
        for d in range(c + 1, 5)
    ]  # fmt: skip
    a, b, c, d = np.array(boxes).T
    found = np.stack([np.broadcast_to(n, a.shape) for n in pieces.met((a, c), (b, d))])
    spans = [(0, 3), (3, 4), (4, 7)], [(0, 2), (2, 5)]
    for k, (low, high, left, right) in enumerate(boxes):
        want = [
            2 * i + j
            for i, (p, q) in enumerate(spans[0]) for j, (r, s) in enumerate(spans[1])
            if low < q and high > p and left < s and right > r
        ]  # fmt: skip
        assert sorted(n for n in found[:, k].tolist() if n >= 0) == want
