"""A part of a range of chips, estimated by the job that has compiled the program for its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.compiler.machine import digest
from worker.explore.chips import Estimator
from worker.explore.fields import document_of, in_search_order, parse_field, values_of
from worker.explore.program import program_in
from worker.explore.shown import why

STAGE = "estimate"
"""What a job with a part announces after its report."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which chips of the range that `vary` spans."""

    vary: tuple[str, ...]
    first: int
    """In search order (`fields.in_search_order`)."""
    count: int

    def to_json(self) -> dict[str, Any]:
        """As a work item carries it."""
        return {"vary": list(self.vary), "first": self.first, "count": self.count}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Part:
        """What `to_json` gave."""
        return cls(tuple(document["vary"]), int(document["first"]), int(document["count"]))


def part_rows(bundle: Path, document: Mapping[str, Any], part: Part) -> list[dict[str, Any]]:
    """A row for every chip of the part, in search order: `choice`, `values`, and either `why` it
    has no figures, or figures as `chips.figures` has them and the chip's `machine_digest`.

    Cost: tilings of all kernels for each chip, unless energies or the clock are all that is new.

    Raises:
        CompilerError: TW-RUN-001, the bundle is damaged; TW-OPT-001, a field is.
    """
    estimator = Estimator(program_in(bundle))
    fields = [parse_field(text, document) for text in part.vary]
    rows: list[dict[str, Any]] = []
    for choice in in_search_order(fields)[part.first : part.first + part.count]:
        chip = document_of(document, fields, choice)
        row = estimator.row(chip)
        about = {"choice": list(choice), "values": values_of(fields, choice)}
        if reason := why(row):
            rows.append({**about, "why": reason})
        else:
            rows.append({**about, **row, "machine_digest": digest(estimator.machine(chip))})
    return rows
