"""GraphTurbo's compile limits: verdicts, the fitted exponent, networks without equal layers."""

from __future__ import annotations

import onnx
import pytest

from benchmarks.compile_limits import (
    LIMITS,
    RSS_LIMIT_MB,
    Limit,
    exponent,
    judged,
    render_growth,
    widening_net,
)


def _row(cold: float, warm: float, again: float, rss: float) -> dict[str, float]:
    return {
        "cold_cpu_s": cold, "warm_cpu_s": warm, "warm_process_cpu_s": again, "peak_rss_mb": rss,
    }  # fmt: skip


def test_a_warm_compile_is_judged_by_the_slower_of_both() -> None:
    limit = Limit("m", {}, 20.0, 2.0)
    assert judged(limit, _row(20.0, 1.0, 2.0, RSS_LIMIT_MB)) == {
        "cold": True, "rss": True, "warm": True,
    }  # fmt: skip
    assert judged(limit, _row(20.1, 1.0, 2.1, RSS_LIMIT_MB + 1)) == {
        "cold": False, "rss": False, "warm": False,
    }  # fmt: skip


def test_without_a_warm_limit_nothing_is_said_of_it() -> None:
    assert set(judged(Limit("m", {}, 1.0, None), _row(1.0, 9.0, 9.0, 1.0))) == {"cold", "rss"}


def test_limits_are_those_of_the_specification() -> None:
    assert [(x.model, x.cold_s, x.warm_s) for x in LIMITS] == [
        ("resnet50_fp16", 20.0, 2.0), ("bert_base_s128", 10.0, None),
    ]  # fmt: skip


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    sizes = [2.0, 4.0, 8.0, 32.0]
    assert exponent(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power)


def test_one_size_makes_no_line() -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        exponent([4.0, 4.0], [1.0, 2.0])


def test_no_two_layers_of_a_widening_net_have_equal_weights() -> None:
    model = widening_net(3)
    onnx.checker.check_model(model, full_check=True)
    shapes = [tuple(w.dims) for w in model.graph.initializer]
    assert len(set(shapes)) == len(shapes) == 3 * 2 * 4
    assert len(model.graph.node) == 3 * 2 * 8


def test_growth_is_shown_with_its_verdict() -> None:
    rows = [
        {"blocks": 2, "operators": 32, "units": 1, "cold_cpu_s": 3.0, "s_per_unit": 3.0,
         "s_per_operator": 0.09},
    ]  # fmt: skip
    found = {"preset": "a", "rows": rows, "exponent": 1.5, "passed": False}
    assert "exponent 1.50 (near-linear: <= 1.3): MISSED" in render_growth(found)
