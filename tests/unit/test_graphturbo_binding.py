"""Core binding by the plain rule: GraphTurbo's vectors (TV-GT-4)."""

from __future__ import annotations

import pytest

from worker.compiler.strategies.graphturbo.binding import plain


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 28, 28, 512), (4, 2)),
        ((2, 28, 28, 512), (2, 4)),
        ((8, 56, 56, 256), (8,)),
        ((1, 56, 56, 256), (1, 8)),
        ((1, 14, 14, 1024), (1, 2, 2, 2)),
        ((1, 7, 7, 2048), (1, 1, 1, 8)),
        ((12, 128, 768), (4, 2)),
        ((3, 128, 768), (1, 8)),
        ((1, 1000), (1, 8)),
        ((7, 7), ()),
        ((), ()),
    ],
)
def test_plain_binding_of_the_paper(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert plain(shape) == expected


@pytest.mark.parametrize(
    ("shape", "num_cores", "expected"),
    [
        ((9, 4), 9, (9,)),
        ((8, 9), 9, (8,)),
        ((6, 8), 9, (3, 2)),  # 6 is neither a power of two nor a divisor of 9
        ((108,), 108, (108,)),
        ((12, 128, 768), 108, (12, 8)),
        ((36, 27, 5), 108, (36, 3)),
        ((4,), 1, ()),
    ],
)
def test_plain_binding_for_other_core_counts(
    shape: tuple[int, ...], num_cores: int, expected: tuple[int, ...]
) -> None:
    assert plain(shape, num_cores) == expected


def test_plain_binding_leaves_annotated_dimensions_alone() -> None:
    assert plain((8, 56, 56, 256), 8, frozenset({0})) == (1, 8)
    assert plain((8, 56), 8, frozenset({0, 1})) == ()
    with pytest.raises(ValueError, match="at least one core"):
        plain((4,), 0)
