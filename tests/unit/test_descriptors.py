"""What entry points may bring: strategies, and things that are none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import pytest

from worker.compiler import descriptors
from worker.compiler.descriptors import StrategyDescriptor, an_option, installed
from worker.compiler.errors import InternalError
from worker.compiler.strategies.naive.descriptor import DESCRIPTOR as NAIVE


class Needy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An option without a default."""

    speed: int


class Choices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A list of known words, and a word."""

    left_out: tuple[Literal["fast", "slow"], ...] = ()
    way: Literal["up", "down"] = "up"


class Open(msgspec.Struct, frozen=True):
    """Takes any field."""


BROUGHT: dict[str, Any] = {
    "good": replace(NAIVE, name="good"),
    "twice": replace(NAIVE, name="good", version="2"),
    "auto": replace(NAIVE, name="auto"),
    "shouting": replace(NAIVE, name="Shouting"),
    "unversioned": replace(NAIVE, name="unversioned", version=""),
    "needy": replace(NAIVE, name="needy", options=Needy),
    "open": replace(NAIVE, name="open", options=Open),
    "number": 3,
}


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    found = [EntryPoint(name, f"test_descriptors:BROUGHT_{name}", descriptors.GROUP)
             for name in [*BROUGHT, "missing"]]  # fmt: skip
    found.append(EntryPoint("leaving", "module_that_exits:DESCRIPTOR", descriptors.GROUP))
    (tmp_path / "module_that_exits.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = sys.modules[__name__]
    for name, value in BROUGHT.items():
        monkeypatch.setattr(module, f"BROUGHT_{name}", value, raising=False)
    monkeypatch.setitem(sys.modules, "test_descriptors", module)
    monkeypatch.setattr(descriptors, "entry_points", lambda group: found)
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.mark.usefixtures("points")
def test_what_is_no_strategy_is_told_and_costs_the_others_nothing() -> None:
    found, broken = installed()
    assert list(found) == ["good"]
    assert found["good"].version == NAIVE.version
    reasons = {row.entry_point.split(" =")[0]: row.reason for row in broken}
    assert set(reasons) == {*BROUGHT, "missing", "leaving"} - {"good"}
    assert "SystemExit" in reasons["leaving"]
    assert "brought by" in reasons["twice"]
    assert "no name" in reasons["auto"]
    assert "no name" in reasons["shouting"]
    assert "no version" in reasons["unversioned"]
    assert "TypeError" in reasons["needy"]
    assert "forbid unknown" in reasons["open"]
    assert "int is no StrategyDescriptor" in reasons["number"]
    assert "AttributeError" in reasons["missing"]


def test_listing_strategies_loads_neither_numpy_nor_a_strategy() -> None:
    code = (
        "import sys; from worker.compiler.descriptors import strategies; strategies();"
        "print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'onnx')"
        " or m.endswith('.strategy') or 'judge' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_options_are_said_in_words() -> None:
    words = replace(NAIVE, options=Choices).option_words
    assert words == {"left_out": "a list of fast, slow", "way": "up (default), down"}


def test_an_example_of_a_list_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = MappingProxyType({"one": replace(NAIVE, name="one", options=Choices)})
    monkeypatch.setattr(descriptors, "strategies", lambda: chosen)
    assert an_option() == ("one", "left_out", '["slow"]')
    assert an_option("way") == ("one", "way", "down")


def test_a_descriptor_loads_its_strategy() -> None:
    assert NAIVE.load().name == "naive"
    lost = replace(NAIVE, implementation="worker.compiler.strategies.naive.strategy:LOST")
    assert isinstance(lost, StrategyDescriptor)
    with pytest.raises(AttributeError):
        lost.load()


def test_an_installation_without_any_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old .egg-info beside the code hides the entry points of the one that is installed."""
    monkeypatch.setattr(descriptors, "entry_points", lambda group: [])
    installed.cache_clear()
    with pytest.raises(InternalError, match="install Tilewright again") as refused:
        descriptors.strategies()
    installed.cache_clear()
    assert refused.value.code == "TW-INT-006"
