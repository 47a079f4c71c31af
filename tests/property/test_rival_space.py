"""nn-dataflow's space on one node: its published optima to the last digit, and toys one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from row_stationary_oracle import Case, best, ways

from benchmarks.rivals.blocking import front, optimum
from benchmarks.rivals.nets import NETS
from benchmarks.rivals.row_stationary import Layer, Node


@pytest.mark.parametrize(
    ("net", "batch", "energy", "cycles"),
    [
        ("mlp_l", 1, 660_060_908, 13_028),
        ("lstm_gnmt", 1, 6_642_136_000, 126_132),
        ("alex_net", 1, 16_439_544_960, 4_392_688),
        ("alex_net", 16, 80_786_679_552, 70_287_104),
        ("mobilenet", 1, 5_902_106_832, 2_574_173),
        ("resnet50", 1, 31_929_793_408, 18_949_056),
        ("googlenet", 1, 11_855_003_584, 8_397_508),
        ("vgg_net", 1, 120_651_488_836, 87_422_400),
    ],
)
def test_networks_have_the_optima_of_the_tool(
    net: str, batch: int, energy: int, cycles: int
) -> None:
    """Figures of nn_dataflow 2.x on an array of 16 x 16, 256 words a PE, 65 536 in the buffer."""
    found = [(optimum(layer, batch, Node()), times) for _, layer, times in NETS[net]()]
    assert round(sum(o.energy * times for o, times in found)) == energy
    assert round(sum(o.cycles * times for o, times in found)) == cycles


sizes = st.sampled_from([1, 2, 3, 4, 6])


@given(
    st.builds(
        Case, sizes, sizes, st.integers(1, 9), st.integers(1, 6), st.integers(1, 5),
        st.integers(1, 3), st.integers(1, 2), st.sampled_from([1, 2, 4]), st.booleans(),
        st.integers(1, 6), st.integers(1, 6), st.integers(4, 60), st.integers(20, 600),
    )
)  # fmt: skip
def test_toys_are_searched_whole(case: Case) -> None:
    if case.region:
        assume(case.channels == case.filters)
    layer = Layer(
        case.channels, case.filters, (case.rows, case.columns), (case.tall, case.wide),
        case.stride, case.region,
    )  # fmt: skip
    node = Node((case.height, case.width), case.registers, case.room)
    try:
        found = optimum(layer, case.batch, node)
    except ValueError:
        assert not any(fits for _, _, fits in ways(case))
        assert not len(front(layer, case.batch, node))
        return
    energy, count = best(case)
    assert found.energy == pytest.approx(float(energy), rel=1e-12)
    assert found.candidates == count
    # Whatever a fetch costs, the best is on the front; and there is nothing else on it.
    rows = front(layer, case.batch, node)
    each = {(float(e), *map(float, fars)) for e, fars, fits in ways(case) if fits}
    known = {(round(e, 6), *rest) for e, *rest in each}
    assert {(round(e, 6), *rest) for e, *rest in rows.tolist()} <= known
    for hops in ((0, 0, 0), (1, 0, 0), (0, 10, 0), (0, 0, 300), (7, 70, 700)):
        least = min(e + sum(h * f for h, f in zip(hops, rest, strict=True)) for e, *rest in each)
        assert (rows[:, 0] + rows[:, 1:] @ np.array(hops)).min() == pytest.approx(least, rel=1e-12)
