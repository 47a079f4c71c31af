"""A host's rates from seconds of operators: exact ones, disturbed ones, and in a document."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import exp, log, prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from scipy.optimize import minimize

from worker.compiler.errors import CompilerError
from worker.compiler.machine import canonical_document, load_machine, preset_document
from worker.host_rates.document import processor_name, with_host
from worker.host_rates.fit import HostRates, compared, fit_host
from worker.host_rates.measure import FEWEST_RUNS, SPEND_S, WARM_RUNS, Timing, fastest
from worker.host_rates.operators import HostOperator, Role, operators

HOST = HostRates(2.0e11, 3.0e10, 7.0e-6)


def timed(host: HostRates, noise: float = 0.0, seed: int = 0) -> list[Timing]:
    draw = np.random.Generator(np.random.PCG64(seed))
    rows = []
    for operator in operators():
        flops, num_bytes = operator.work()
        work = max(flops / host.flops_per_s, num_bytes / host.memory_bytes_per_s)
        if operator.role is Role.CALL:
            rows.append(Timing(operator, flops, num_bytes, host.launch_overhead_s))
        else:
            factor = exp(noise * draw.standard_normal())
            rows.append(Timing(operator, flops, num_bytes, host.launch_overhead_s + work * factor))
    return rows


@pytest.mark.parametrize(
    ("flops_per_s", "bytes_per_s"),
    [(1e10, 4e9), (1e11, 4e9), (3e11, 2e10), (3e11, 2e11), (6e12, 2e11)],
)
def test_a_host_that_is_a_roofline_is_found(flops_per_s: float, bytes_per_s: float) -> None:
    host = HostRates(flops_per_s, bytes_per_s, 7.0e-6)
    found = fit_host(timed(host))
    assert found.launch_overhead_s == host.launch_overhead_s
    for row in compared(timed(host), found):
        if row.timing.operator.role is Role.FITTED:
            assert row.ratio == pytest.approx(1, rel=1e-9)
    assert found.memory_bytes_per_s == pytest.approx(bytes_per_s)
    assert found.flops_per_s == pytest.approx(flops_per_s)


@pytest.mark.parametrize(("flops_per_s", "bytes_per_s"), [(1e9, 2e11), (6e12, 4e9)])
def test_a_rate_that_nothing_is_bound_by_is_not_exaggerated(
    flops_per_s: float, bytes_per_s: float
) -> None:
    host = HostRates(flops_per_s, bytes_per_s, 7.0e-6)
    found = fit_host(timed(host))
    assert found.flops_per_s <= flops_per_s * (1 + 1e-9)
    assert found.memory_bytes_per_s <= bytes_per_s * (1 + 1e-9)
    fitted = [r for r in compared(timed(host), found) if r.timing.operator.role is Role.FITTED]
    assert all(row.ratio == pytest.approx(1, rel=1e-9) for row in fitted)


def squared_error(rates: Sequence[float], timings: Sequence[Timing]) -> float:
    """Of logarithms, written anew; `rates` are logarithms as well."""
    launch = next(t.seconds for t in timings if t.operator.role is Role.CALL)
    error = 0.0
    for t in timings:
        if t.operator.role is Role.FITTED:
            work = max(t.flops / exp(rates[0]), t.num_bytes / exp(rates[1]))
            error += (log(work) - log(t.seconds - launch)) ** 2
    return error


@pytest.mark.parametrize("seed", range(6))
def test_no_other_rates_tell_disturbed_operators_better(seed: int) -> None:
    rows = timed(HOST, noise=0.8, seed=seed)
    found = fit_host(rows)
    best = squared_error([log(found.flops_per_s), log(found.memory_bytes_per_s)], rows)
    starts = itertools.product(np.linspace(22, 30, 9), np.linspace(20, 28, 9))
    others = [minimize(squared_error, start, (rows,), method="Nelder-Mead").fun for start in starts]
    assert best <= min(others) + 1e-6


def test_what_is_held_out_is_not_looked_at() -> None:
    rows = timed(HOST, noise=0.3)
    slower = [
        Timing(t.operator, t.flops, t.num_bytes, t.seconds * 50)
        if t.operator.role is Role.HELD_OUT
        else t
        for t in rows
    ]
    assert fit_host(slower) == fit_host(rows)
    assert min(r.ratio for r in compared(slower, fit_host(rows))) < 0.1


def test_an_operator_as_short_as_a_call_says_nothing() -> None:
    rows = timed(HOST)
    rows[3] = Timing(rows[3].operator, rows[3].flops, rows[3].num_bytes, HOST.launch_overhead_s)
    with pytest.raises(CompilerError, match="no longer than an empty call") as caught:
        fit_host(rows)
    assert caught.value.code == "TW-CLI-005"
    assert rows[3].operator.name in caught.value.message


def test_the_fastest_run_counts_and_the_first_ones_do_not() -> None:
    # Seconds of each call: two warm ones, then what is measured.
    lengths = iter([5.0, 4.0, 0.02, 0.01, *[0.03] * 20])
    now, calls = 0.0, 0

    def call() -> None:
        nonlocal now, calls
        now += next(lengths)
        calls += 1

    assert fastest(call, lambda: now) == pytest.approx(0.01)
    assert calls >= WARM_RUNS + FEWEST_RUNS
    assert now - 9.0 >= SPEND_S


@pytest.mark.parametrize("operator", operators(), ids=lambda o: o.name)
def test_an_operator_is_valid_and_its_shapes_are_its_own(operator: HostOperator) -> None:
    model = operator.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    shape = [d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim]
    assert tuple(shape) == operator.output
    onnx.checker.check_model(operator.model(), full_check=True)
    elements = sum(prod(s) for s in (*operator.inputs, *operator.constants, operator.output))
    flops, num_bytes = operator.work()
    assert num_bytes == 4 * elements
    assert flops >= prod(operator.output)


def test_fitted_and_held_out_operators_have_different_shapes() -> None:
    seen = {(o.op_type, o.inputs, o.constants) for o in operators() if o.role is Role.FITTED}
    held = [o for o in operators() if o.role is Role.HELD_OUT]
    assert held
    assert all((o.op_type, o.inputs, o.constants) not in seen for o in held)
    assert len({o.name for o in operators()}) == len(operators())


def test_a_document_takes_the_rates_and_keeps_what_cannot_be_measured() -> None:
    document = canonical_document(preset_document("stcp920-inferred"))
    document["host"]["efficiency"] = 0.5
    before = load_machine(document)
    changed = with_host(document, HostRates(2.34567e11, 3e10, 7e-6), "A CPU", "by a test")
    machine = load_machine(changed)
    assert machine.host.name == "A CPU"
    assert machine.host.flops_per_s == 2.35e11
    assert machine.host.efficiency == 1.0
    assert machine.host.work_s(0, 3 * 10**10) == pytest.approx(1.0)
    assert machine.host.link_bytes_per_s == before.host.link_bytes_per_s
    assert machine.host.energy_pj_per_flop == before.host.energy_pj_per_flop
    assert changed["host"]["energy_pj_per_flop"]["tag"] == "G"
    assert before.host.name in changed["host"]["energy_pj_per_flop"]["note"]
    assert changed["host"]["flops_per_s"] == {"value": 2.35e11, "note": "by a test"}
    assert document["host"]["name"] == before.host.name, "the document given is not changed"
    assert {k: v for k, v in changed.items() if k != "host"} == {
        k: v for k, v in document.items() if k != "host"
    }


def test_an_energy_of_the_same_processor_stays_as_it_was() -> None:
    document = canonical_document(preset_document("stcp920-inferred"))
    document["host"]["energy_pj_per_flop"] = {"value": 41, "tag": "S", "note": "data sheet"}
    changed = with_host(document, HOST, document["host"]["name"], "by a test")
    assert changed["host"]["energy_pj_per_flop"] == document["host"]["energy_pj_per_flop"]


def test_names_of_processors(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A fast one @ 3 GHz\nmodel name\t: B\n")
    assert processor_name(info) == "A fast one @ 3 GHz"
    info.write_text("processor\t: 0\n")
    assert processor_name(info)
    assert processor_name(tmp_path / "none")
