"""Fixtures every test may use, and the closing line that says what was skipped and why."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from worker.compiler.faults import Fault

pytest_plugins = [
    name
    for name in ("service_fixtures", "api_fixtures")
    if importlib.util.find_spec(name) is not None
]

REPO = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files")
    parser.addoption(
        "--require-servers", action="store_true", help="a missing server fails instead of skipping"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave campaigns out unless `-m` asks for them."""
    if "campaign" in (config.getoption("-m") or ""):
        return
    kept = [item for item in items if item.get_closest_marker("campaign") is None]
    dropped = [item for item in items if item.get_closest_marker("campaign") is not None]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")
    if not reasons:
        terminalreporter.write_line("skipped 0")


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Folder with model skeletons and materialize.py; skips with a reason when it is not there."""
    configured = os.environ.get("TILEWRIGHT_TEST_MODELS")
    folder = Path(configured) if configured else REPO.parent / "shared" / "models"
    if not (folder / "materialize.py").is_file():
        pytest.skip("model skeletons not found (set TILEWRIGHT_TEST_MODELS to their folder)")
    return folder


@pytest.fixture(autouse=True)
def no_strategy_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Falling back hides a fault from users, not from tests: one met in this process fails."""
    solve = sys.modules.get("worker.compiler.judge.solve")
    if solve is None:  # then nothing that is tested here compiles
        yield
        return
    met: list[str] = []
    broke = solve.UnitPool.broke

    def noted(self: object, nodes: Sequence[str], fault: Fault) -> None:
        met.append(fault.sentence)
        broke(self, nodes, fault)

    monkeypatch.setattr(solve.UnitPool, "broke", noted)
    yield
    assert not met, f"a strategy broke: {met[0]}"
