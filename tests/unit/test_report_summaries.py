"""What strategies register for reports: checked, shown, and never the end of a job or a report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import pytest

from service.cli.summaries import print_summaries
from worker.compiler.options import CompileOptions
from worker.compiler.strategies.naive.descriptor import DESCRIPTOR as NAIVE
from worker.compiler.strategies.sections import (
    Columns,
    Figures,
    Markup,
    PageBlock,
    Summary,
    Table,
    UnitNotes,
)
from worker.report.sections import null_sentences, stored_summaries
from worker.report.summaries import strategy_columns, summaries_section
from worker.report.summary_page import summaries_html

HERE = "test_report_summaries"
UNITS = (
    UnitNotes("toy", 0, ("a<b>", "m", "z"), 2, ("left",), 7, 9),
    UnitNotes("naive", 1, ("n",), 1, (), 3, 4),
)


class Good(Summary, frozen=True):
    """Names its nodes."""

    nodes: tuple[str, ...]
    hint: str | None = None

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: Any) -> Self | None:
        del options
        return cls(nodes=tuple(unit.label for unit in units))


class Newer(Good, frozen=True):
    """Another release's."""

    schema_version: int = 2


class Silent(Good, frozen=True):
    """Has nothing to say."""

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: Any) -> Self | None:
        del units, options
        return None


class Broken(Good, frozen=True):
    """Raises."""

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: Any) -> Self | None:
        raise ZeroDivisionError(f"seeded {object()!r}")


class Lying(Good, frozen=True):
    """Is not of its own type."""

    @classmethod
    def of(cls, units: Sequence[UnitNotes], options: Any) -> Self | None:
        del units, options
        return cls(nodes=3)  # type: ignore[arg-type]


NOT_A_SUMMARY = dict


def shown(summary: Good) -> Iterator[PageBlock]:
    yield Figures("Toy <1>", {"nodes": len(summary.nodes), "deep": {"hint": summary.hint}})
    yield Table("", ("node",), tuple({"node": node} for node in summary.nodes))


def drawn(summary: Good) -> Iterator[PageBlock]:
    yield from shown(summary)
    yield Markup("Drawn", "<svg></svg>")


def raises(summary: Good) -> Iterator[PageBlock]:
    yield from shown(summary)
    raise RuntimeError("seeded <page>")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


def cells(summary: Good) -> Columns:
    return {0: {"first": summary.nodes[0], "share": 0.5, "hint": summary.hint}}


def nested(summary: Good) -> Any:
    return {0: {"nodes": list(summary.nodes)}}


def misnamed(summary: Good) -> Columns:
    return {0: {"=cmd": len(summary.nodes)}}


def register(
    patch: pytest.MonkeyPatch, summary: str = "Good", page: str = "drawn", text: str = "shown",
    columns: str = "",
) -> None:  # fmt: skip
    """A strategy `toy` beside the real ones."""
    parts = {"summary": summary, "page": page, "text": text, "columns": columns}
    references = {part: f"{HERE}:{name}" if name else "" for part, name in parts.items()}
    toy = replace(NAIVE, name="toy", version="7", is_last_resort=False, **references)
    for module in ("sections", "summaries"):
        patch.setattr(f"worker.report.{module}.strategies", lambda: MappingProxyType({"toy": toy}))
    patch.setattr("worker.report.summaries.own_options", lambda name, options: None)


def report() -> dict[str, Any]:
    found, faults = summaries_section(UNITS, (), CompileOptions())
    assert faults == ()
    return {"schema_version": 2, "summaries": found}


def test_a_summary_is_of_its_strategys_units_only(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    assert report()["summaries"] == {
        "toy": {"schema_version": 1, "nodes": ["a<b> .. z"], "hint": None}
    }
    assert null_sentences(report()) == {"summaries.toy.hint": "its strategy does not say why"}


def test_columns_are_called_by_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, columns="cells")
    found, faults = strategy_columns(report()["summaries"])
    assert found == {0: {"toy_first": "a<b> .. z", "toy_share": 0.5, "toy_hint": None}}
    assert faults == ()
    register(monkeypatch)
    assert strategy_columns(report()["summaries"]) == ({}, ())


@pytest.mark.parametrize("columns", ["nested", "misnamed", "raises", "absent"])
def test_columns_that_break_are_left_out(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    register(monkeypatch, columns=columns)
    found, faults = strategy_columns(report()["summaries"])
    assert found == {}
    assert [fault.strategy for fault in faults] == ["toy"]


def test_a_page_and_a_terminal_show_the_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch)
    page = "".join(summaries_html(report()))
    assert "<h2>Toy &lt;1&gt;</h2>" in page and "a&lt;b&gt; .. z" in page
    assert page.endswith("<h2>Drawn</h2><svg></svg>")
    print_summaries(report())
    assert capsys.readouterr().out.splitlines() == [
        "Toy <1>:", "nodes:     1", "deep.hint: -", "node", "a<b> .. z",
    ]  # fmt: skip


def test_who_has_nothing_to_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "Silent")
    assert report()["summaries"] == {}
    register(monkeypatch, "", "", "")
    assert report()["summaries"] == {}
    register(monkeypatch, page="", text="")
    assert summaries_html(report()) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [("Broken", "ZeroDivisionError: seeded <object object at 0x...>"),
     ("Lying", "ValidationError: Expected `array`, got `int`"),
     ("NOT_A_SUMMARY", f"TypeError: {HERE}:NOT_A_SUMMARY is no Summary"),
     ("MISSING", "AttributeError: ")],
)  # fmt: skip
def test_what_breaks_is_left_out_and_told(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, name)
    found, (fault,) = summaries_section(UNITS, (), CompileOptions())
    assert found == {}
    assert fault.sentence.startswith(f"toy 7 failed at step summary: {says}")


def told(said: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What the page says in place of a section, and the terminal on stderr."""
    print_summaries(said)
    printed = capsys.readouterr()
    assert printed.out == ""
    return "".join(summaries_html(said)), printed.err


def test_what_cannot_be_shown_costs_the_rest_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch, page="raises", text="drawn")
    page, terminal = told(report(), capsys)
    assert page == (
        '<h2>toy</h2><p class="bad">toy 7 failed at step page: RuntimeError: seeded'
        " &lt;page&gt;</p>"
    )
    assert "toy 7 failed at step text: TypeError: a Markup cannot be shown here" in terminal


def test_another_version_or_no_strategy_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch)
    old = report()
    register(monkeypatch, "Newer")
    for text in told(old, capsys):
        assert "its summary has schema version 1, this strategy reads 2" in text
    stranger = {"schema_version": 2, "summaries": {"gone": {"schema_version": 1}}}
    for text in told(stranger, capsys):
        assert "strategy gone is not installed here" in text


def test_the_first_version_had_summaries_at_the_top() -> None:
    section = {"variant": "full"}
    old = {"schema_version": 1, "graphturbo": section, "summary": {}, "layers": []}
    assert [(row.name, row.told) for row in stored_summaries(old)] == [("graphturbo", section)]
    assert stored_summaries({**old, "graphturbo": None}) == ()
    assert stored_summaries({"schema_version": 2}) == ()
