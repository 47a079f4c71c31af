"""The command over all campaigns: what it runs, what it skips, and how it ends."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import campaigns
from benchmarks.campaigns import Campaign, command_campaigns, main, marked_tests, run


def test_every_marked_file_and_every_command_is_there(tmp_path: Path) -> None:
    files = {one.name for one in marked_tests()}
    assert {"tests/e2e/test_kill_real.py", "tests/e2e/test_conformance_campaign.py"} <= files
    found = command_campaigns(tmp_path)
    assert len({one.name for one in found} | files) == len(found) + len(files)
    for one in found:
        assert all(find_spec(module) for module, *_ in one.commands), one.name


class Ran:
    """Stands for running: remembers the names, and fails where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.failing: set[str] = set()
        self.commit = "a" * 12
        three = [Campaign(name, (("this",),)) for name in ("one", "two", "three")]
        monkeypatch.setattr(campaigns, "marked_tests", lambda: three)
        monkeypatch.setattr(campaigns, "command_campaigns", lambda folder: [])
        monkeypatch.setattr(campaigns, "commit", lambda: self.commit)
        monkeypatch.setattr(campaigns, "run", self._run)

    def _run(self, campaign: Campaign, log: Path) -> campaigns.Row:
        self.names.append(campaign.name)
        code = int(campaign.name in self.failing)
        return {"exit": code, "minutes": 1.5, "ended": "now", "log": str(log)}

    def names_of(self, folder: Path, *words: str, code: int = 0) -> list[str]:
        self.names.clear()
        assert main(["--folder", str(folder), *words]) == code
        return list(self.names)


def test_a_run_goes_on_with_what_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(monkeypatch)
    ran.failing = {"two"}
    assert ran.names_of(tmp_path, code=1) == ["one", "two", "three"]
    said = capsys.readouterr().out
    assert "| one | aaaaaaaaaaaa | now | 1.5 | passed |" in said
    assert "| two | aaaaaaaaaaaa | now | 1.5 | FAILED (1), see " in said
    ran.failing.clear()
    assert ran.names_of(tmp_path) == ["two"]
    assert ran.names_of(tmp_path) == []
    assert ran.names_of(tmp_path, "--again") == ["one", "two", "three"]
    ran.commit = "b" * 12
    assert ran.names_of(tmp_path, "--only", "three") == ["three"]
    assert ran.names_of(tmp_path, "--list", code=1) == []
    ran.commit = "b" * 12 + "+"  # changed files may have changed again
    assert ran.names_of(tmp_path, "--only", "three") == ["three"]
    assert ran.names_of(tmp_path, "--only", "three") == ["three"]
    rows = json.loads((tmp_path / "campaigns.json").read_text())
    assert [rows[name]["commit"][0] for name in ("one", "two", "three")] == ["a", "a", "b"]
    with pytest.raises(SystemExit):
        main(["--folder", str(tmp_path), "--only", "four"])


def test_commands_run_in_order_until_one_fails(tmp_path: Path) -> None:
    log = tmp_path / "log"
    good, bad = ("platform", "--terse"), ("unittest", "no_such_module")
    assert run(Campaign("good", (good, good)), log)["exit"] == 0
    assert len(log.read_text().splitlines()) == 2
    assert run(Campaign("bad", (bad, good)), log)["exit"] != 0
    assert log.read_text().count("\n" + log.read_text().splitlines()[0]) == 1
