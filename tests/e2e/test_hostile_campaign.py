"""The hostile campaign at smoke size: it runs, keeps its ledger, and finds no fault."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.hostile import __main__ as hostile
from benchmarks.hostile import api, child
from benchmarks.hostile.child import Verdict, run_limited

SMALL = {"models": 12, "extremes": 9, "specs": 6, "bundles": 4}


def test_faults_of_a_child_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(folder: Path) -> Verdict:
        while folder:
            pass
        return Verdict("accepted")

    def die(folder: Path) -> Verdict:
        del folder
        hostile.sys.exit(3)

    def grow(folder: Path) -> Verdict:
        del folder
        return Verdict("accepted", detail=str(np.ones(200_000_000, np.uint8).sum()))

    with monkeypatch.context() as patch:
        patch.setattr(child, "WALL_S", 1.0)
        assert run_limited(hang).kind == "hung"
    monkeypatch.setattr(child, "RSS_BYTES", 150 << 20)
    assert run_limited(die).kind == "internal"
    assert run_limited(grow).kind == "memory"
    assert run_limited(lambda _: Verdict("refused", "TW-X")).code == "TW-X"


@pytest.mark.campaign
def test_hostile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One second is judged by the command on an idle machine; here it must only answer.
    monkeypatch.setattr(api, "HEALTH_LIMIT_S", 10.0)
    counts = [word for kind, n in SMALL.items() for word in (f"--{kind}", str(n))]
    arguments = [*counts, "--api-minutes", "0.2", "--seed", "3", "--jobs", "2",
                 "--ledger", str(tmp_path / "hostile.jsonl")]  # fmt: skip
    code = hostile.main(arguments)
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "hostile.jsonl").read_text().splitlines()]
    assert len(rows) == sum(SMALL.values())
    assert code == 0, said
