"""Core binding on random shapes, against its definition."""

from __future__ import annotations

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.strategies.graphturbo.binding import plain

EXTENTS = st.sampled_from((1, 2, 3, 4, 6, 7, 8, 12, 16))
CORES = st.sampled_from((1, 2, 4, 6, 8, 9, 16, 108))
SHAPES = st.lists(EXTENTS, min_size=1, max_size=4).map(tuple)


@given(shape=SHAPES, num_cores=CORES, data=st.data())
def test_plain_is_legal_and_greedy(
    shape: tuple[int, ...], num_cores: int, data: st.DataObject
) -> None:
    forbidden = data.draw(st.frozensets(st.integers(0, len(shape) - 1)))
    found = plain(shape, num_cores, forbidden)
    assert prod(found) <= num_cores
    assert not found or found[-1] > 1
    left = num_cores
    for dim, extent in enumerate(shape):
        factor = found[dim] if dim < len(found) else 1
        legal = [
            f
            for f in range(1, left + 1)
            if extent % f == 0 and (num_cores % f == 0 or f.bit_count() == 1)
        ]
        assert factor == (1 if dim in forbidden else max(legal))
        left //= factor


@given(shape=SHAPES, exponent=st.integers(0, 4), data=st.data())
def test_no_binding_beats_plain_on_a_power_of_two_cores(
    shape: tuple[int, ...], exponent: int, data: st.DataObject
) -> None:
    cores = 2**exponent
    forbidden = data.draw(st.frozensets(st.integers(0, len(shape) - 1)))
    options = [
        [1 << k for k in range(exponent + 1) if e % (1 << k) == 0 and (d not in forbidden or not k)]
        for d, e in enumerate(shape)
    ]
    best = max(used for used in map(prod, product(*options)) if used <= cores)
    assert prod(plain(shape, cores, forbidden)) == best
