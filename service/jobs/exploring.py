"""Sweeps that estimate first: their parts, what parts give, and the winners that are compiled.

The machines of a range are estimated in parts, each of which is an item with an ordinary job: it
compiles the model for the base and estimates that program's kernels on the machines of its part
(`worker.explore.part`).  When all parts of a model have succeeded, the best of its front become
items of the same sweep, each with a job like that of any other machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from sys import float_info
from typing import Any, TypeGuard

from sqlalchemy.orm import Session

from service.errors import Malformed, TooLarge
from service.jobs.submit import NewSpec
from service.settings import Settings
from service.states import SweepItemState
from service.store.records import Document, SweepRecord
from service.store.repos import catalog, sweeps
from service.text import carried
from worker.compiler.descriptors import estimating
from worker.compiler.options import CompileOptions, VerifyMode

MACHINES_OF_PART = 25
"""Machines that one job estimates: their tilings take longer than its compile, most of which the
cache has, and what a killed worker or a cancel loses is no more than that."""
MOST_WINNERS = 20
_MOST_CHARS = 500


class Cost(StrEnum):
    """What fronts of estimates may compare, less being better (`worker.explore.chips.COSTS`)."""

    LATENCY_S = "latency_s"
    ENERGY_PJ = "energy_pj"
    ON_CHIP_BYTES = "on_chip_bytes"
    AREA_MM2 = "area_mm2"
    OFF_CHIP_BYTES_PER_S = "off_chip_bytes_per_s"


FIGURES = (*map(str, Cost), "cycles", "gap")
"""Of an estimate."""


@dataclass(frozen=True, slots=True)
class Explore:
    """What a sweep estimates."""

    vary: tuple[str, ...]
    costs: tuple[str, ...]
    """What the front of estimates compares, less being better."""
    winners: int
    """Machines of each model's front that are compiled."""
    base: str
    """Id of the hardware spec that is varied."""
    machines: int
    """Estimated for each model."""

    def to_json(self) -> dict[str, Any]:
        """As the sweep's row has it."""
        return {
            "vary": list(self.vary), "costs": list(self.costs), "winners": self.winners,
            "base": self.base, "machines": self.machines,
        }  # fmt: skip

    @classmethod
    def of(cls, sweep: SweepRecord) -> Explore | None:
        """What a sweep estimates; None: nothing."""
        found: Any = sweep.explore
        if found is None:
            return None
        return cls(
            tuple(found["vary"]), tuple(found["costs"]), found["winners"], found["base"],
            found["machines"],
        )  # fmt: skip


def check_range(models: int, machines: int, winners: int, settings: Settings) -> None:
    """Refuse what would have too many items.

    Raises:
        Malformed: it has no model.
        TooLarge: its parts and winners are more than `settings.max_sweep_items`.
    """
    if not models:
        raise Malformed("a sweep needs a model", pointer="/models", limit=1, actual=0)
    number = models * (ceil(machines / MACHINES_OF_PART) + winners)
    if number > settings.max_sweep_items:
        raise TooLarge(
            f"{machines} machines for {models} models, {MACHINES_OF_PART} of which are an item,"
            f" and {winners} winners of each are {number} items; a sweep has"
            f" {settings.max_sweep_items} at most",
            limit=settings.max_sweep_items, actual=number,
            remedy="Give fewer models, values or winners, several sweeps, or raise"
            " TILEWRIGHT_MAX_SWEEP_ITEMS.",
        )  # fmt: skip


def part_rows(explore: Explore, models: Sequence[str], name: str) -> list[dict[str, Any]]:
    """Rows of the items that estimate, model by model, without their numbers; `name` is that of
    the base."""
    return [
        {
            "model_id": model, "hardware_id": explore.base, "hardware_name": name, "values": [],
            "on_chip_bytes": None, "state": str(SweepItemState.PENDING), "error": None,
            "part": {"first": first, "count": min(MACHINES_OF_PART, explore.machines - first)},
        }
        for model in models
        for first in range(0, explore.machines, MACHINES_OF_PART)
    ]  # fmt: skip


def part_options(options: CompileOptions) -> CompileOptions:
    """Options of a job that estimates: what decides the graphs of kernels is the user's, the rest
    is for winners."""
    return replace(
        options, strategy=estimating().name, strategy_options=(), verify=VerifyMode.NONE,
        inputs="", max_power_w=None, max_latency_ms=None, fail_on_fallback=False,
        require_cache=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """One of a range."""

    choice: list[int]
    """Which of each field's values."""
    values: list[float]
    """Of every number that is varied."""


def machines_of(session: Session, sweep: SweepRecord) -> tuple[Machine, ...]:
    """All machines of a sweep's range, in the order in which parts count them.

    The base and its fields were read when the sweep was accepted; here they are counted.
    """
    from worker.explore.fields import in_search_order, parse_field, values_of

    explore = Explore.of(sweep)
    base = None if explore is None else catalog.get_hardware(session, explore.base)
    if explore is None or base is None:  # jobs of parts keep it
        return ()
    fields = [parse_field(text, base.document) for text in explore.vary]
    return tuple(Machine(list(c), values_of(fields, c)) for c in in_search_order(fields))


def estimates_in(result: object, machines: Sequence[Machine]) -> list[Document] | None:
    """What a job says of the machines of its part; None: not what a part's job says.

    The job's own process wrote it, so it may be anything.
    """
    rows = result.get("estimates") if isinstance(result, Mapping) else None
    if not isinstance(rows, list) or not machines or len(rows) != len(machines):
        return None
    found = [_estimate(row, machine) for row, machine in zip(rows, machines, strict=True)]
    return None if None in found else [row for row in found if row is not None]


def _estimate(row: object, machine: Machine) -> Document | None:
    if not isinstance(row, Mapping):
        return None
    about: dict[str, Any] = {"choice": machine.choice, "values": machine.values}
    if any(row.get(name) != wanted for name, wanted in about.items()):
        return None
    if "why" in row:
        return {**about, "why": str(carried(str(row["why"])))[:_MOST_CHARS]}
    figures = {name: row.get(name) for name in FIGURES}
    digest = row.get("machine_digest")
    if not isinstance(digest, str) or len(digest) > _MOST_CHARS or not digest.isascii():
        return None
    if not all(is_figure(v) or (name == "gap" and v is None) for name, v in figures.items()):
        return None
    return {**about, **figures, "machine_digest": digest}


def is_figure(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that a float can hold: an integer may be too long for one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -float_info.max <= value <= float_info.max


def owes_winners(session: Session, sweep: SweepRecord) -> bool:
    """Whether a model's parts have all succeeded and no machine of its front is an item yet."""
    explore = Explore.of(sweep)
    return bool(explore and explore.winners and sweeps.models_without_winners(session, sweep.id))


def add_winners(session: Session, sweep: SweepRecord) -> None:
    """Make items of the best estimated machines of every model whose parts have all succeeded.

    Which they are is `tilewright explore`'s choice.  Cost: sorts the estimates of these models.
    """
    explore = Explore.of(sweep)
    if explore is None or not explore.winners:
        return
    from worker.explore.fields import document_of, parse_field
    from worker.explore.winners import best_of, marked

    for model in sweeps.models_without_winners(session, sweep.id):
        base = catalog.get_hardware(session, explore.base)
        if base is None:  # jobs of parts keep it
            continue
        rows: list[dict[str, Any]] = sorted(
            map(dict, sweeps.estimates_of(session, sweep.id, model)), key=lambda row: row["choice"]
        )
        best = best_of(marked(rows, explore.costs), explore.winners)
        # The base and its fields were read when the sweep was accepted; this sets numbers.
        fields = [parse_field(text, base.document) for text in explore.vary]
        new: list[dict[str, Any]] = []
        specs: list[dict[str, Any]] = []
        for row in best:
            own = document_of(base.document, fields, row["choice"])
            spec = NewSpec(own, row["machine_digest"], base.name)
            specs.append({"id": spec.id, "machine_digest": spec.machine_digest, "name": spec.name,
                          "document": own})  # fmt: skip
            new.append({
                "model_id": model, "hardware_id": spec.id, "hardware_name": spec.name,
                "values": row["values"], "on_chip_bytes": row["on_chip_bytes"],
                "state": str(SweepItemState.PENDING), "error": None,
                "estimates": [{k: v for k, v in row.items() if k != "is_on_front"}],
            })  # fmt: skip
        if new:
            catalog.add_all_hardware(session, sweep.owner, specs)
            sweeps.append(session, sweep.id, new)
