"""What the gate of examples/ci says of a slower DRAM: the comment, and the first line."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_example import Team

FOLDER = Path(__file__).parent / "gate"
MARK_WORDS = ["<!--", "tilewright-gate", "tilewright.yaml", "changed"]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    folder = tmp_path_factory.mktemp("gate")
    made = Team(folder / "team", folder / "data")
    made.edit("hardware/edge.yaml", "read_bytes_per_cycle: 25.6", "read_bytes_per_cycle: 12.8")
    return made


def test_the_comment(team: Team, request: pytest.FixtureRequest) -> None:
    ran = team.gate("--markdown", "gate.md")
    mark, _, body = (team.root / "gate.md").read_text(encoding="utf-8").partition("\n")
    assert mark.split()[:4] == MARK_WORDS
    text = f"{ran.first_line}\n\n{body}"
    golden = FOLDER / "slower_dram.md"
    if request.config.getoption("--update-golden"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    (team.root / "gate.md").rename(team.root / "first.md")
    team.commit()  # a further push with the same verdict is the same comment
    team.gate("--markdown", "gate.md", "--today", "2026-06-09")
    assert (team.root / "gate.md").read_bytes() == (team.root / "first.md").read_bytes()
