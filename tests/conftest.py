"""Fixtures every test may use, and the closing line that says what was skipped and why."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis_profiles  # noqa: F401  (loads the profile, before a test is collected)
import pytest

from worker.compiler.faults import Fault

# Compiled modules are kept beside their sources, as numba's loops are: every one of the hundreds of
# processes that tests start would compile them again.  Payloads read what lies there.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = [
    name
    for name in ("service_fixtures", "service_workers", "api_fixtures")
    if importlib.util.find_spec(name) is not None
]

REPO = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files")
    parser.addoption("--screenshots", metavar="DIR", help="keep pictures of the pages there")
    parser.addoption(
        "--require-servers", action="store_true", help="a missing server fails instead of skipping"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave campaigns out unless `-m` asks for them; at smoke size keep a case of each.

    What runs the lines that documents print is left out unless the environment asks for it.  Files
    and functions of `.ci/uncounted` run without coverage, where there is one at all.
    """
    uncounted = set((REPO / ".ci" / "uncounted").read_text().split())
    is_asked = "campaign" in (config.getoption("-m") or "")
    is_printed = bool(os.environ.get("TILEWRIGHT_TEST_DOCUMENTS"))
    is_smoke = os.environ.get("TILEWRIGHT_CAMPAIGN", "full") == "smoke"
    seen: set[str] = set()
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker("document") and not is_printed:
            dropped.append(item)
            continue
        names = {item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]}
        if names & uncounted and config.pluginmanager.hasplugin("_cov"):
            item.add_marker("no_cover")
        mark = item.get_closest_marker("campaign")
        test = item.nodeid.partition("[")[0]
        if mark is None or (is_asked and not is_smoke):
            kept.append(item)
        elif not is_asked or test in seen or not mark.kwargs.get("smoke", True):
            dropped.append(item)
        else:
            seen.add(test)
            kept.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_collection_finish() -> None:
    """Keep what collecting made, which stays to the end, out of every later garbage collection."""
    gc.collect()
    gc.freeze()


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
    solve = importlib.import_module("worker.compiler.judge.solve")  # a test may import it later
    met: list[str] = []
    broke = solve.UnitPool.broke

    def noted(self: object, nodes: Sequence[str], fault: Fault) -> None:
        met.append(fault.sentence)
        broke(self, nodes, fault)

    monkeypatch.setattr(solve.UnitPool, "broke", noted)
    yield
    assert not met, f"a strategy broke: {met[0]}"
