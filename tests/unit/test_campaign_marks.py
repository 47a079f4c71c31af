"""Which tests run: none that is a campaign by default, all with `-m campaign`, a case of each in
.ci/run; those of documents where the environment asks for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import pytest_collection_modifyitems

MARK = pytest.mark.campaign.mark
NO_SMOKE = pytest.mark.campaign(smoke=False).mark
DOCUMENT = pytest.mark.document.mark
COLLECTED = {
    "f.py::test_short": None, "f.py::test_long[a]": MARK, "f.py::test_long[b]": MARK,
    "g.py::test_long[a]": MARK, "g.py::test_mixed[a]": None, "g.py::test_mixed[b]": MARK,
    "g.py::test_vast": NO_SMOKE,
}  # fmt: skip
PRINTED = "h.py::test_printed"  # fmt: skip


def kept(asked: str, size: str, monkeypatch: pytest.MonkeyPatch, documents: str = "") -> list[str]:
    """What is left of the campaigns and the others; pytest's own `-m` comes on top."""
    monkeypatch.setenv("TILEWRIGHT_CAMPAIGN", size)
    monkeypatch.setenv("TILEWRIGHT_TEST_DOCUMENTS", documents)
    items = [
        SimpleNamespace(
            nodeid=name,
            get_closest_marker=lambda wanted, mark=mark: (
                mark if mark is not None and mark.name == wanted else None
            ),
        )
        for name, mark in {**COLLECTED, PRINTED: DOCUMENT}.items()
    ]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(getoption=lambda name: asked, hook=hook)
    pytest_collection_modifyitems(cast("Any", config), cast("Any", items))
    return [item.nodeid for item in items]


@pytest.mark.parametrize("size", ["full", "smoke"])
def test_campaigns_are_left_out_by_default(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept("", size, monkeypatch) == [name for name, mark in COLLECTED.items() if mark is None]


def test_all_of_them_run_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept("campaign", "full", monkeypatch) == list(COLLECTED)


def test_a_case_of_each_runs_at_smoke_size(monkeypatch: pytest.MonkeyPatch) -> None:
    some = set(kept("campaign", "smoke", monkeypatch))
    assert set(COLLECTED) - some == {"f.py::test_long[b]", "g.py::test_vast"}


def test_documents_run_where_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PRINTED not in kept("", "smoke", monkeypatch)
    assert PRINTED in kept("", "smoke", monkeypatch, documents="1")
