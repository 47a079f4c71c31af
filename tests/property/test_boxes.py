"""Boxes compared by their starts: what iteration by iteration says, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_schedules import TOYS, rewrite

from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, const, var
from worker.compiler.ir.op import Access
from worker.compiler.schedule import verify_residency
from worker.compiler.schedule.boxes import accessed, moved_by, stays_inside, within
from worker.compiler.schedule.hulls import spread
from worker.compiler.schedule.nodes import Box, Compute, Loop, LoopKind, Move, Node, Place, Span
from worker.compiler.schedule.verify import verify
from worker.compiler.schedule.walk import Frame

NAMES = "abc"


@st.composite
def affines(draw: st.DrawFn) -> Affine:
    steps = draw(st.lists(st.integers(-6, 6), min_size=3, max_size=3))
    found = const(draw(st.integers(-4, 4)))
    for name, step in zip(NAMES, steps, strict=True):
        found = found + var(name) * step
    return found


spans = st.builds(Span, affines(), st.integers(1, 8))
trips = st.tuples(*[st.integers(1, 4)] * 3)


def points(counts: tuple[int, ...]) -> Iterator[dict[str, int]]:
    for values in product(*map(range, counts)):
        yield dict(zip(NAMES, values, strict=True))


@given(spans, trips)
def test_what_iterations_write_together(span: Span, counts: tuple[int, int, int]) -> None:
    """All of it where nothing is left out between, else nothing is said."""
    frames = {n: Frame(n, t, LoopKind.TIME, 0, "0") for n, t in zip(NAMES, counts, strict=True)}
    moving = {n for n in frames if frames[n].trip > 1}
    starts = sorted({span.start.evaluate(point) for point in points(counts)})
    whole = spread((span,), frames)
    if any(b - a > span.extent for a, b in pairwise(starts)):
        assert whole is None
        return
    assert whole is not None
    assert not moving & set(whole[0].start.variables())
    low = whole[0].start.evaluate(dict.fromkeys(NAMES, 0))
    assert (low, whole[0].extent) == (starts[0], starts[-1] - starts[0] + span.extent)


@given(spans, spans, trips)
def test_a_box_in_another(one: Span, other: Span, counts: tuple[int, int, int]) -> None:
    if within((one,), (other,)):
        for point in points(counts):
            first, begin = one.start.evaluate(point), other.start.evaluate(point)
            assert begin <= first
            assert first + one.extent <= begin + other.extent


@given(spans, st.integers(0, 8), st.integers(0, 8), st.integers(-3, 3))
def test_a_part_of_a_span_is_in_it(span: Span, before: int, behind: int, ahead: int) -> None:
    around: Box = (Span(span.start - before, span.extent + before + behind),)
    assert within((span,), around)
    moved: Box = (Span(span.start + ahead, span.extent),)
    assert within(moved, around) == (-before <= ahead <= behind)


@given(spans, spans, st.lists(st.integers(-3, 3), min_size=3, max_size=3), trips)
def test_what_an_access_touches(
    one: Span, other: Span, steps: list[int], counts: tuple[int, int, int]
) -> None:
    index = var("i") * steps[0] + var("j") * steps[1] + steps[2]
    box = accessed(Access("t", (index,)), {"i": one, "j": other})
    assert box is not None
    for point in points(counts):
        ends = [
            (span.start.evaluate(point), span.start.evaluate(point) + span.extent - 1)
            for span in (one, other)
        ]
        values = [steps[0] * i + steps[1] * j + steps[2] for i, j in product(*ends)]
        low = box[0].start.evaluate(point)
        assert (low, low + box[0].extent - 1) == (min(values), max(values))


@given(spans, trips, st.integers(1, 30))
def test_what_stays_inside(span: Span, counts: tuple[int, int, int], extent: int) -> None:
    starts = [span.start.evaluate(point) for point in points(counts)]
    found = stays_inside(span, extent, dict(zip(NAMES, counts, strict=True)))
    assert found == (min(starts) >= 0, max(starts) + span.extent <= extent)


def test_other_indices_are_not_told_by_their_starts() -> None:
    assert moved_by(var("i") + 3) == ("i", 3)
    assert moved_by(var("i") * 2) is None
    assert moved_by(var("i") + var("j")) is None
    assert moved_by(var("i").floordiv(2)) is None
    assert accessed(Access("t", (var("i").floordiv(2),)), {"i": Span(const(0), 4)}) is None


def wronged(node: Node, rng: np.random.Generator) -> Node | None:
    """A node with a box that is moved, shorter or longer, or a loop of another trip; mostly not."""
    if rng.random() < 0.8:
        return None

    def other(box: Box) -> Box:
        if not box:
            return box
        found, k = list(box), int(rng.integers(len(box)))
        span, by = found[k], int(rng.integers(-2, 3))
        kind = rng.integers(3)
        if kind == 0:
            found[k] = Span(span.start + by, span.extent)
        elif kind == 1:
            found[k] = Span(span.start, max(span.extent + by, 1))
        else:
            found[k] = Span(span.start * int(rng.integers(1, 3)), span.extent)
        return tuple(found)

    match node:
        case Loop():
            return replace(node, trip=max(node.trip + int(rng.integers(-1, 2)), 1))
        case Place():
            return replace(node, tile=other(node.tile))
        case Move() | Compute():
            return replace(node, box=other(node.box))
    return None


@pytest.mark.parametrize("name", TOYS)
def test_wrong_schedules_are_found_either_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the starts, and iteration by iteration: the same rule at the same node."""
    schedule, machine, _ = TOYS[name]()
    rng = np.random.default_rng(11)
    verdicts = set()
    for _ in range(150):
        broken = replace(
            schedule, root=rewrite(schedule.root, lambda node: wronged(node, rng))
        )  # fmt: skip
        said: list[tuple[str, str] | None] = []
        for look in (within, lambda inner, outer: False):
            with monkeypatch.context() as patch:
                patch.setattr(verify_residency, "within", look)
                try:
                    verify(broken, machine)
                except VerifyError as error:
                    said.append((error.path, error.rule))
                else:
                    said.append(None)
        assert said[0] == said[1]
        verdicts.add(said[0] and said[0][1])
    assert "resident" in verdicts
    assert None in verdicts
