"""A team's repository (examples/ci), with git and compiles: what a pull request meets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from gate_example import EXAMPLE, Team, table

from service.cli.embedded import embedded_service

WARM_CPU_S = 5.0
"""What the gate on the example may take when its compiles are known."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all."""
    return tmp_path_factory.mktemp("gate") / "data"


@pytest.fixture
def team(tmp_path: Path, data: Path) -> Team:
    return Team(tmp_path / "team", data)


def test_models_are_what_their_script_writes(tmp_path: Path) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_models", EXAMPLE / "make_models.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main([str(tmp_path)])
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in (EXAMPLE / "models").iterdir()}


def test_nothing_changed(team: Team) -> None:
    ran = team.gate()
    assert (ran.code, table(ran)) == (0, []), ran.stderr
    assert ran.first_line.startswith("PASS: ")
    assert ran.first_line.endswith("no difference in 2 pairs")


def test_warm_it_takes_less_than_five_seconds_of_cpu(team: Team) -> None:
    team.edit("hardware/edge.yaml", "capacity_bytes: 32768", "capacity_bytes: 65536")
    team.gate()
    again = team.gate()
    assert again.cpu_s <= WARM_CPU_S, again


def test_a_field_of_the_spec_is_changed(team: Team) -> None:
    team.edit("hardware/edge.yaml", "read_bytes_per_cycle: 25.6", "read_bytes_per_cycle: 12.8")
    ran = team.gate("--annotations", "github")
    assert ran.code == 1, ran.stderr
    verdict = ran.first_line
    assert verdict.startswith("FAIL: ")
    assert " on edge slower by " in verdict
    assert "most by port:DRAM.read (+" in verdict
    assert "the spec's /levels/DRAM/read_bytes_per_cycle: 25.6 -> 12.8" in verdict
    layers = [row["what"] for row in table(ran) if ", layer " in row.get("what", "")]
    assert layers
    assert all("slower" in said for said in layers)
    line = 1 + (team.root / "hardware/edge.yaml").read_text().splitlines().index(
        "    read_bytes_per_cycle: 12.8"
    )
    assert f"::error file=hardware/edge.yaml,line={line},title=" in ran.stdout


def test_renamed_nodes_are_no_difference(team: Team) -> None:
    team.rename_nodes("models/detector.onnx")
    team.rename_nodes("models/ranker.onnx")
    ran = team.gate()
    assert (ran.code, table(ran)) == (0, []), ran.stderr
    assert ran.first_line.endswith("no difference in 2 pairs")


WAIVER = """
waivers:
  - {check: regression, hardware: edge, owner: Ada, reason: the cheaper DRAM, expires: 2026-06-30}
"""


def test_a_waiver_holds_until_it_expires(team: Team) -> None:
    team.edit("hardware/edge.yaml", "read_bytes_per_cycle: 25.6", "read_bytes_per_cycle: 12.8")
    path = team.root / "tilewright.yaml"
    path.write_text(path.read_text() + WAIVER)
    held = team.gate("--today", "2026-06-30")
    assert held.code == 0
    assert {(row["result"], row["check"]) for row in table(held)} == {
        ("waived", "regression"),
        ("noted", "rules"),  # that there is a waiver now
    }
    gone = team.gate("--today", "2026-07-01")
    assert gone.code == 1
    assert "the waiver of Ada expired on 2026-06-30: the cheaper DRAM" in gone.first_line


def test_the_base_is_where_the_branch_left_main(team: Team) -> None:
    team.git("checkout", "-q", "main")
    team.edit("hardware/edge.yaml", "read_bytes_per_cycle: 25.6", "read_bytes_per_cycle: 12.8")
    team.commit(message="main is slower now")
    team.git("checkout", "-q", "work")
    assert team.gate().first_line.endswith("no difference in 2 pairs")
    faster = team.gate("--base", "main")
    assert faster.code == 0
    assert " on edge faster by " in faster.first_line


def test_a_model_that_cannot_be_compiled_any_more(team: Team) -> None:
    (team.root / "models/ranker.onnx").write_bytes(b"\xff\xff")
    ran = team.gate()
    assert ran.code == 1
    assert ran.first_line.startswith("FAIL: ranker on edge fails: TW-MODEL-001 ")
    assert ran.first_line.endswith("the base compiles")
    team.git("checkout", "-q", "models")
    team.edit("hardware/edge.yaml", "capacity_bytes: 32768", "capacity_bytes: -1")
    broken = team.gate("--json")
    assert broken.code == 1
    found = [f for f in json.loads(broken.stdout)["findings"] if f["check"] == "failing"]
    assert [(f["path"], f["line"]) for f in found] == [("hardware/edge.yaml", 8)] * 2


def test_a_baseline_in_a_file(team: Team) -> None:
    team.edit("tilewright.yaml", "source: merge-base\n  branch: main",
              "source: file\n  path: baseline.json")  # fmt: skip
    refused = team.gate("--write-baseline", "--junit", "x.xml")
    assert refused.code == 2
    written = team.gate("--write-baseline")
    assert (written.code, written.stdout) == (0, "baseline.json\n"), written.stderr
    assert team.gate().first_line.endswith("no difference in 2 pairs")
    team.edit("hardware/edge.yaml", "read_bytes_per_cycle: 25.6", "read_bytes_per_cycle: 12.8")
    assert team.gate().code == 1


def test_a_baseline_of_a_server(team: Team, tmp_path: Path) -> None:
    """Jobs are labelled with their commit; a branch is compared with those of the merge base."""
    team.edit("tilewright.yaml", "source: merge-base", "source: server")
    team.commit()
    team.git("branch", "-q", "-f", "main")
    without = team.gate()
    assert without.code == 0
    assert without.first_line.startswith("NEUTRAL: no baseline: it is a server's, and none is")
    team.edit("hardware/edge.yaml", "read_bytes_per_cycle: 25.6", "read_bytes_per_cycle: 12.8")
    team.commit()
    with embedded_service(tmp_path / "served", workers=1) as url:
        first = team.gate("--server", url)
        assert first.code == 0
        assert first.first_line.startswith("NEUTRAL: detector on edge has no baseline: the server")
        team.git("checkout", "-q", "main")
        assert team.gate("--server", url).first_line.endswith("no difference in 2 pairs")
        team.git("checkout", "-q", "work")
        ran = team.gate("--server", url)
        assert ran.code == 1
        assert "most by port:DRAM.read" in ran.first_line
        here = team.gate("--server", url, "--local")  # the base of a server, compiled here
        assert here.first_line == ran.first_line


def test_a_repository_is_set_up_and_has_a_gate_at_once(team: Team) -> None:
    for name in ("tilewright.yaml", ".tilewright", ".github"):
        path = team.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    team.commit(message="without a gate")
    team.git("branch", "-q", "-f", "main")
    assert team.gate("init", "--branch", "main", day=None).code == 0
    ran = team.gate()
    assert ran.code == 0, ran.stderr
    assert ran.first_line.endswith("no difference in 2 pairs")
    assert team.gate("init", day=None).code == 3


def test_what_is_wrong_with_the_call(team: Team) -> None:
    assert team.gate("-f", "nowhere.yaml").code == 3
    for words in (
        ("--today", "soon"), ("--annotations", "jenkins"), ("--annotations", "github", "--json"),
        ("--label", "x"), ("--junit", "x.xml", "schema"),
    ):  # fmt: skip
        assert team.gate(*words, day=None).code == 2, words
    team.edit("tilewright.yaml", "figure: host_ops", "figure: host")
    refused = team.gate()
    assert refused.code == 3
    assert "tilewright.yaml:" in refused.stderr
    assert "there is no figure 'host'" in refused.stderr
