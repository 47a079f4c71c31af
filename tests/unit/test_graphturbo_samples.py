"""Samples per cluster of the baseline: the paper's TVM column (TV-GT-9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.tvm_samples import tvm_samples

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
