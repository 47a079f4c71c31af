"""What stands for election under `--partition auto`, what is shown of it, and what is obeyed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx_models import conv_net, repeated_layers, saved
from partition_toys import Toy

from service.cli.summary import print_summary
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.judge.programs import rules_of
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine, PartitionMode
from worker.compiler.options import CompileOptions, Objective, PartitionChoice
from worker.compiler.partition.plan import HOST, RegionRule
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

FAST_HOST = {
    "inherits": "xavier", "name": "far",
    "host": {"name": "near", "flops_per_s": 1e15, "memory_bytes_per_s": 1e14,
             "link_bytes_per_s": 1e6, "link_latency_s": 1e-3, "launch_overhead_s": 0,
             "shared_memory": False},
}  # fmt: skip


def reported(
    folder: Path, hardware: Mapping[str, Any], **asked: object
) -> tuple[dict[str, Any], str]:
    """(report, page) of a small net."""
    options = CompileOptions.from_json({"verify": "none", **asked})
    request = JobRequest(saved(conv_net(), folder), "m", dict(hardware), options, folder / "build")
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    page = (folder / "out" / "report.html").read_text()
    return json.loads((folder / "out" / "report.json").read_bytes()), page


def rows_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["regions_by"]: row for row in report["partition"]["candidates"]}


def test_where_the_host_wins_everything_begins_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, page = reported(tmp_path, FAST_HOST, partition="auto")
    assert report["summary"]["accelerator_ops"] == 0
    verdict, rows = report["partition"]["host_verdict"], rows_of(report)
    assert list(rows) == ["weighed", "criteria", "greedy", "all-host"]
    assert rows["all-host"]["chosen"] and not rows["greedy"]["chosen"]
    for rule in ("greedy", "all-host"):
        assert f"{rows[rule]['latency_cycles']} " in verdict
    assert "--partition greedy" in verdict and rows["greedy"]["regions"] == 1
    assert rows["greedy"]["same_as"] == ["criteria"]
    assert page.index("The host alone is best") < page.index("<h2>")
    print_summary(report, {})
    assert capsys.readouterr().out.splitlines()[0] == verdict


def test_a_named_choice_is_obeyed(tmp_path: Path) -> None:
    for name in ("greedy", "criteria"):
        folder = tmp_path / name
        folder.mkdir()
        report, page = reported(folder, FAST_HOST, partition=name)
        assert report["summary"]["accelerator_ops"] > 0
        assert report["partition"]["candidates"] == []
        assert report["partition"]["host_verdict"] == "" and "The host alone" not in page


def test_the_host_is_a_fallback_where_none_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(CompilerError) as refused:
        reported(tmp_path, FAST_HOST, partition="auto", fail_on_fallback=True)
    assert refused.value.code == "TW-UNSUP-001"
    assert refused.value.remedy is not None and "--partition greedy" in refused.value.remedy


def test_the_rival_of_integers_is_the_users_model(tmp_path: Path) -> None:
    """The host alone has no quantisation, whatever the accelerator would have had."""
    hardware = {**FAST_HOST, "inherits": "dpu-zu"}
    greedy = tmp_path / "greedy"
    greedy.mkdir()
    forced, _ = reported(greedy, hardware, partition="greedy")
    assert any(row["is_inserted"] for row in forced["placement"])
    report, _ = reported(tmp_path, hardware, partition="auto")
    assert report["summary"]["accelerator_ops"] == 0
    assert not any(row["is_inserted"] for row in report["placement"])
    assert report["conversion"]["boundaries"] == []
    assert "CONVERSION_UNUSED" in {warning["code"] for warning in report["warnings"]}
    assert all(row["reason"] for row in report["placement"])


def test_greedy_stands_in_integers_where_criteria_leave_no_region(tmp_path: Path) -> None:
    """The conversion was thrown away before greedy regions were seen."""
    slow = {"flops_per_s": 1e6, "memory_bytes_per_s": 1e6}
    hardware = {"inherits": "dpu-zu", "name": "picky", "host": slow,
                "capabilities": {"partition": {"min_macs": 1e15}}}  # fmt: skip
    cycles = {}
    for name in ("criteria", "greedy", "auto"):
        folder = tmp_path / name
        folder.mkdir()
        report, _ = reported(folder, hardware, partition=name)
        cycles[name] = report["summary"]["latency_cycles"]
    assert cycles["auto"] <= cycles["greedy"] < cycles["criteria"]


def simplified(folder: Path) -> Any:
    return simplify(load_model(saved(repeated_layers(3), folder), Limits(), "m"))


def test_rules_that_end_in_the_same_parts_are_one_program(tmp_path: Path) -> None:
    toy = Toy(simplified(tmp_path), load_preset("stcp920-inferred"))
    found, _ = toy.scheduled(PartitionChoice.AUTO)
    of_regions = [p.rules for p in found.election.programs if p.regions]
    assert any({RegionRule.CRITERIA, RegionRule.GREEDY} <= set(rules) for rules in of_regions)
    assert sum(RegionRule.GREEDY in rules for rules in of_regions) == 1
    assert found.maker.program(found.election.way) is found.program or (
        found.program.placement[0].target == HOST
    )


def test_a_criterion_does_not_make_auto_slower_than_greedy(tmp_path: Path) -> None:
    """Regions of one operator each are launched one by one; greedy ones at once."""
    machine = load_preset("xavier")
    target = replace(
        machine.targets[0], launch_latency_cycles=10**6,
        criteria=replace(machine.targets[0].criteria, max_ops=1),
    )  # fmt: skip
    slow = replace(machine.host, flops_per_s=1.0)
    toy = Toy(simplified(tmp_path), replace(machine, targets=(target,), host=slow))
    greedy, criteria = (toy.cycles(c) for c in (PartitionChoice.GREEDY, PartitionChoice.CRITERIA))
    assert toy.cycles(PartitionChoice.AUTO) <= greedy < criteria


def of_energy(machine: Machine, pj: float) -> Machine:
    return replace(machine, host=replace(machine.host, energy_pj_per_flop=pj))


def test_the_host_stands_where_its_costs_are_known() -> None:
    machine = load_preset("xavier")

    def stands(objective: Objective, on: Machine) -> bool:
        asked = CompileOptions(objective=objective, partition=PartitionChoice.AUTO)
        return RegionRule.HOST in rules_of(on, asked)

    assert stands(Objective.LATENCY, of_energy(machine, 0.0))
    for objective in (Objective.ENERGY, Objective.EDP):
        assert not stands(objective, of_energy(machine, 0.0))
        assert stands(objective, of_energy(machine, 5.0))
    for objective in (Objective.OFFCHIP, Objective.PEAK_MEMORY):
        assert not stands(objective, of_energy(machine, 5.0))


def test_a_mode_that_a_target_names_binds_it() -> None:
    machine = load_preset("xavier")
    (target,) = machine.targets
    auto = replace(target, criteria=replace(target.criteria, mode=PartitionMode.AUTO))
    other = replace(target, name="other")
    asked = CompileOptions()
    assert rules_of(machine, asked) == (RegionRule.CRITERIA,)
    assert RegionRule.HOST in rules_of(replace(machine, targets=(auto,)), asked)
    mixed = rules_of(replace(machine, targets=(auto, other)), asked)
    assert mixed == (RegionRule.WEIGHED, RegionRule.CRITERIA)
