"""Energies of a hardware document, taken from what Accelergy or hwcomponents estimated.

Two forms are read.  Accelergy's energy reference tables (`ERT` with `tables`, or `ERT_summary`):
picojoules per action of a component.  Component costs as AccelForge and hwcomponents give them:
component -> actions -> `energy`, in joules.  Neither says how many bits an access moves, and names
of components are their authors', so whoever asks says which component is which level or engine.
An action listed several times with other arguments counts with its costliest (a new address with
new data).  Leakage and areas are not taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any

from worker.compiler.errors import Detail, SpecError
from worker.compiler.machine.inherit import escape

_PJ_PER_J = 1e12


@dataclass(frozen=True, slots=True)
class LevelSource:
    """Which component is a memory level."""

    level: str
    component: str
    bits: int
    """Moved by one read or write of the component."""


@dataclass(frozen=True, slots=True)
class EngineSource:
    """Which action of a component is one operation of an engine in a number format."""

    engine: str
    dtype: str
    component: str
    action: str


@dataclass(frozen=True, slots=True)
class EnergyTable:
    """Energies by component and action."""

    origin: str
    """What notes call it."""
    pointers: Mapping[str, str]
    """Component -> JSON pointer into the table's document."""
    actions: Mapping[str, Mapping[str, float]]
    """Component -> action -> picojoules."""

    def energy(self, component: str, action: str) -> tuple[str, float]:
        """(full name, picojoules) of an action.

        A component is named in full, or by the end of its name; `[1..16]` may be left out.

        Raises:
            SpecError: TW-SPEC-005, no component or several of that name, or none such action.
        """
        wanted = _plain(component)
        names = [n for n in self.actions if n == component or _plain(n) == wanted]
        names = names or [n for n in self.actions if _plain(n).endswith(f".{wanted}")]
        if len(names) != 1:
            raise _refused(
                f"the table has {len(names)} components called {component}", "",
                sorted(names or self.actions), component,
            )  # fmt: skip
        (name,) = names
        found = self.actions[name].get(action)
        if found is None:
            raise _refused(
                f"{name} has no energy of {action}", self.pointers[name],
                sorted(self.actions[name]), action,
            )  # fmt: skip
        return name, found


def read_energy_table(document: Mapping[str, Any], origin: str) -> EnergyTable:
    """The table in a document; `origin` names it in notes.

    Raises:
        SpecError: TW-SPEC-005 with a pointer, it is neither form, or an energy is no number >= 0.
    """
    summary = document.get("ERT_summary")
    if isinstance(summary, Mapping):
        return _reference_table(summary.get("table_summary"), "/ERT_summary/table_summary", origin)
    table = document.get("ERT")
    if isinstance(table, Mapping):
        return _reference_table(table.get("tables"), "/ERT/tables", origin)
    return _component_costs(document, origin)


def with_energies(
    document: Mapping[str, Any],
    table: EnergyTable,
    levels: Sequence[LevelSource],
    engines: Sequence[EngineSource],
) -> dict[str, Any]:
    """A hardware document (inheritance resolved) with energies of a table, each with its evidence.

    Raises:
        SpecError: TW-SPEC-005, as `EnergyTable.energy`, or there is no such level or engine.
    """
    changed = deepcopy(dict(document))
    for source in levels:
        if source.bits < 1:
            raise _refused(f"an access of {source.component} moves {source.bits} bits", "", 1,
                           source.bits)  # fmt: skip
        level = _named(changed, "levels", source.level)
        for action in ("read", "write"):
            name, energy = table.energy(source.component, action)
            note = f"{table.origin}: {name} {action}, {energy:g} pJ per {source.bits} bits"
            level[f"{action}_energy_pj_per_byte"] = _derived(energy * 8 / source.bits, note)
    for operation in engines:
        engine = _named(changed, "engines", operation.engine)
        stage = engine.get("output_stage", {})
        rated = set(engine.get("macs_per_cycle", {})).union(*stage.values())
        if operation.dtype not in rated:
            raise _refused(
                f"{operation.engine} has no rate for {operation.dtype}", "", sorted(rated),
                operation.dtype,
            )  # fmt: skip
        name, energy = table.energy(operation.component, operation.action)
        note = f"{table.origin}: {name} {operation.action}"
        energies = dict(engine.get("op_energy_pj") or {})
        engine["op_energy_pj"] = energies | {operation.dtype: _derived(energy, note)}
    return changed


def _reference_table(tables: Any, at: str, origin: str) -> EnergyTable:
    if not isinstance(tables, list) or not tables:
        raise _refused("the energy reference table has no components", at, "a list", None)
    pointers: dict[str, str] = {}
    found: dict[str, dict[str, float]] = {}
    for k, table in enumerate(tables):
        pointer = f"{at}/{k}"
        if not isinstance(table, Mapping) or not isinstance(table.get("actions"), list):
            raise _refused("a component has a name and a list of actions", pointer, None, None)
        actions = found.setdefault(str(table.get("name")), {})
        pointers[str(table.get("name"))] = pointer
        for j, action in enumerate(table["actions"]):
            where = f"{pointer}/actions/{j}"
            if not isinstance(action, Mapping):
                raise _refused("an action has a name and an energy", where, None, None)
            name = str(action.get("name"))
            energy = _energy(action.get("energy"), f"{where}/energy")
            actions[name] = max(energy, actions.get(name, 0.0))
    return EnergyTable(origin, pointers, found)


def _component_costs(document: Mapping[str, Any], origin: str) -> EnergyTable:
    pointers: dict[str, str] = {}
    found: dict[str, dict[str, float]] = {}
    for component, costs in document.items():
        actions = costs.get("actions") if isinstance(costs, Mapping) else None
        if not isinstance(actions, Mapping):
            raise _refused(
                "it is neither an energy reference table nor costs by component and action",
                f"/{escape(str(component))}", ["ERT", "ERT_summary", "actions"], None,
            )  # fmt: skip
        pointers[str(component)] = f"/{escape(str(component))}"
        found[str(component)] = {
            str(name): _PJ_PER_J
            * _energy(
                cost.get("energy") if isinstance(cost, Mapping) else None,
                f"/{escape(str(component))}/actions/{escape(str(name))}/energy",
            )
            for name, cost in actions.items()
        }
    return EnergyTable(origin, pointers, found)


def _energy(value: Any, pointer: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused("an energy is a number", pointer, "a number", str(value))
    if not isfinite(value) or value < 0:
        raise _refused("an energy is finite and not below 0", pointer, 0, str(value))
    return float(value)


def _named(document: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = document.get(kind, [])
    for row in rows:
        if row.get("name") == name:
            return row
    raise _refused(
        f"the hardware has no {kind.removesuffix('s')} {name}", f"/{kind}",
        [str(row.get("name")) for row in rows], name,
    )  # fmt: skip


def _plain(name: str) -> str:
    return re.sub(r"\[\d+\.\.\d+\]", "", name)


def _derived(value: float, note: str) -> dict[str, Any]:
    return {"value": float(f"{value:.6g}"), "tag": "D", "note": note[:500]}


def _refused(message: str, pointer: str, limit: Any, actual: Detail) -> SpecError:
    return SpecError("TW-SPEC-005", message, pointer=pointer or None, limit=limit, actual=actual)
