"""Samples per cluster: the paper's TVM column (TV-GT-9), and the analytic choice."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.strategies.graphturbo.samples import (
    Limit,
    SampleCost,
    choose_samples,
    sample_candidates,
    tvm_samples,
)

MIB = 1 << 20
LLB = 8 * MIB
F16 = 2


def bert_peak(tokens: int) -> int:
    """Live bytes at the scores of one BERT-base layer: residual, q, k, v and the scores."""
    return 4 * tokens * 768 * F16 + 12 * tokens * tokens * F16


def bottleneck_peak(side: int, width: int, out: int, *, in_place: bool) -> int:
    """Live bytes at the end of a ResNet bottleneck block: shortcut, last input, output, sum."""
    conv = side * side * (out + width + out) * F16
    add = side * side * out * F16 * (2 if in_place else 3)
    return max(conv, add)


def test_printed_column_of_tvm() -> None:
    """TV-GT-9: Table 2's TVM column from live bytes against the 8 MiB of a cluster."""
    resnet50 = bottleneck_peak(56, 64, 256, in_place=True)
    assert round(resnet50 / MIB, 3) == 3.445
    assert tvm_samples(resnet50, LLB) == 2
    expected = {128: (1.125, 4), 256: (3.0, 2), 384: (5.625, 1), 512: (9.0, 1)}
    for tokens, (mib, samples) in expected.items():
        assert bert_peak(tokens) / MIB == mib
        assert tvm_samples(bert_peak(tokens), LLB) == samples
    expanded = (96 * 112 * 112 + 96 * 56 * 56) * F16
    assert tvm_samples(expanded, LLB) == 2  # MobileNet-v2's second block


def test_in_place_addition_is_what_makes_resnet50_fit_twice() -> None:
    out_of_place = bottleneck_peak(56, 64, 256, in_place=False)
    assert round(out_of_place / MIB, 3) == 4.594
    assert tvm_samples(out_of_place, LLB) == 1


@given(peak=st.integers(1, 1 << 24), capacity=st.integers(1, 1 << 26))
def test_tvm_samples_is_the_largest_fitting_power_of_two(peak: int, capacity: int) -> None:
    n = tvm_samples(peak, capacity)
    assert n & (n - 1) == 0
    assert n == 1 or n * peak <= capacity
    assert 2 * n * peak > capacity


@pytest.mark.parametrize(("peak", "capacity"), [(0, 1), (1, 0), (-1, 8)])
def test_tvm_samples_refuses_sizes_that_are_not_positive(peak: int, capacity: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        tvm_samples(peak, capacity)


def test_candidates_hold_the_numbers_of_table_2() -> None:
    table = {(64, 16), (32, 8), (16, 4), (8, 2), (1024, 256), (128, 32), (12, 3)}
    for batch, samples in table:
        assert samples in sample_candidates(batch, 4)
    assert sample_candidates(12, 4) == (1, 2, 3)
    assert sample_candidates(3, 4) == (1,)
    assert len(sample_candidates(100_000, 4)) < 2 * 25_000**0.5 + 16
    with pytest.raises(ValueError, match="clusters"):
        sample_candidates(8, 0)


@given(st.data())
def test_choice_is_the_best_of_all_numbers(data: st.DataObject) -> None:
    """Brute force over every n, for costs that never fall when n grows."""
    batch, clusters = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 5))
    share = ceil(batch / clusters)
    grown = st.lists(st.integers(0, 50), min_size=share, max_size=share)

    def rising() -> list[int]:
        steps = data.draw(grown)
        return [sum(steps[: k + 1]) for k in range(share)]

    compute, exchange, spilled = rising(), rising(), rising()
    weights, overhead = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 99))
    most = data.draw(st.integers(0, share))

    def cost_of(n: int) -> SampleCost:
        return SampleCost(compute[n - 1], weights, exchange[n - 1], spilled[n - 1], n <= most)

    choice = choose_samples(
        batch, clusters, cost_of, overhead_cycles=overhead, home_bytes_per_cycle=4
    )
    latencies = {
        n: ceil(batch / (clusters * n))
        * (max(compute[n - 1], weights, exchange[n - 1]) + ceil(spilled[n - 1] / 2) + overhead)
        for n in range(1, share + 1)
    }
    if most == 0:
        assert choice.is_fallback
        assert (choice.samples, choice.iterations) == (1, share)
        assert "looped over" in choice.explanation()
    else:
        assert not choice.is_fallback
        assert choice.chosen.latency_cycles == min(latencies[n] for n in range(1, most + 1))
        assert choice.iterations * clusters * choice.samples >= batch
    for row in choice.rows:
        assert row.latency_cycles == latencies.get(row.samples, row.latency_cycles)
    assert all(a.samples < b.samples for a, b in pairwise(choice.rows))


def _knee(n: int) -> SampleCost:
    """Weights cost 4 samples' work, and beyond 8 samples per cluster activations spill."""
    return SampleCost(1000 * n, 4000, 900 * n, max(0, n - 8) * 4 * 100_000, n <= 16)


def test_table_1_knee() -> None:
    """A batch of 64: two rounds of 8 beat one round of 16 that spills, and four rounds of 4."""
    choice = choose_samples(64, 4, _knee, overhead_cycles=100, home_bytes_per_cycle=136)
    assert (choice.samples, choice.iterations) == (8, 2)
    by_samples = {row.samples: row for row in choice.rows}
    assert by_samples[8].latency_cycles == 2 * (8000 + 100)
    assert by_samples[16].latency_cycles == 16_000 + ceil(2 * 3_200_000 / 136) + 100
    assert by_samples[4].latency_cycles > by_samples[8].latency_cycles
    assert by_samples[2].cost.limit is Limit.WEIGHTS
    assert "8 per cluster in 2 rounds" in choice.explanation()
    assert "limited by compute" in choice.explanation()


def test_a_number_that_is_no_power_of_two_wins() -> None:
    """Conformer: 12 samples on 4 clusters are 3 each."""
    choice = choose_samples(12, 4, lambda n: SampleCost(10 * n, 25, 0, 0), overhead_cycles=5)
    assert (choice.samples, choice.iterations) == (3, 1)
    assert choose_samples(12, 4, lambda n: SampleCost(10 * n, 25, 0, 0, n < 3)).samples == 2


def test_ties_go_to_fewer_spills_then_fewer_rounds() -> None:
    flat = choose_samples(16, 4, lambda n: SampleCost(10 * n, 0, 0, 0))
    assert flat.samples == 4
    spilling = choose_samples(16, 4, lambda n: SampleCost(10 * n, 0, 0, n // 4))
    assert spilling.samples == 2


def test_given_candidates_are_the_only_ones_besides_1() -> None:
    choice = choose_samples(64, 4, _knee, [8, 16, 8])
    assert [row.samples for row in choice.rows] == [1, 8, 16]
    only = choose_samples(64, 4, lambda n: SampleCost(1, 1, 1, 0, n == 16), [16])
    assert only.samples == 16
    assert only.explanation().endswith("nothing else fits")


@pytest.mark.parametrize(
    ("batch", "clusters", "candidates", "bandwidth"),
    [(0, 4, None, 1.0), (4, 0, None, 1.0), (4, 4, [0], 1.0), (4, 4, [1], 0.0)],
)
def test_refusals(
    batch: int, clusters: int, candidates: list[int] | None, bandwidth: float
) -> None:
    with pytest.raises(ValueError, match="clusters"):
        choose_samples(batch, clusters, _knee, candidates, home_bytes_per_cycle=bandwidth)
