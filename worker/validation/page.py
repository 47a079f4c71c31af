"""Outcomes as a page and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.validation.figures import Network
from worker.validation.outcome import Outcome, Validation, Verdict
from worker.validation.published import DRIFT

_HEAD = f"""# Published figures against the simulation

A printed page (`python -m benchmarks.validation`, `tilewright validate -o`); do not edit. Published
figures are the cited ones, ours are simulated.

- **ratio**: ours / published, of rates (fps, TOPS, TB/s) published / ours: above 1 we are slower
  than the chip, below 1 we flatter it. Power: above 1 we charge more.
- **band**: ratios that are aimed at. A ratio outside fails the gate, unless the row states its
  miss: then it may lie within a factor {DRIFT} of the stated one. A stated miss whose band is
  reached fails too.
- **floor**: the ratio that no mapping could beat. Of an operator: the least bound of all mappings
  of the brute force that were not simulated; what lies between floor and ratio is not proved to be
  the clock's. Of a network: the lower bound of its kernels; ratio / floor is at most the search's.
- **causes**: the likeliest first. They are named from how the clock works, not each isolated by an
  experiment.
- **role**: `calibration`, the preset was made with the figure in view; `held out`, it was not.
- **evidence**: P printed in a paper, S seen in a vendor's document, R read in a public repository,
  K widely known, D derived from such, M measured by us on the hardware, or with the tool, named.
- Operators run the best mapping of a brute force (which space: `worker/validation/space.py`),
  verified and simulated as every schedule is. Networks are compiled by all strategies in
  competition, as users compile them.
"""


def page(found: Validation) -> str:
    """All rows as Markdown."""
    parts = [_HEAD, _summary(found)]
    singles = [o for o in found.outcomes if not isinstance(o.row.work, Network)]
    networks = [o for o in found.outcomes if isinstance(o.row.work, Network)]
    for title, some in (("Single operators", singles), ("Networks", networks)):
        if some:
            parts += [f"\n## {title}\n\n", _table(some), "\n", _notes(some)]
    return "".join(parts)


def document(found: Validation) -> dict[str, Any]:
    """All rows and the figures over them, for JSON."""
    mean = found.mean
    return {
        "schema_version": 1,
        "passed": not found.failures,
        "failures": list(found.failures),
        "mean": {
            "ratio": _rounded(found.geometric_mean),
            "band": list(mean.band),
            "stated_miss": mean.miss,
            "causes": [str(cause) for cause in mean.causes],
            "verdict": str(found.mean_verdict),
        },
        "rows": [_row(outcome) for outcome in found.outcomes],
    }


def _summary(found: Validation) -> str:
    verdicts = [o.verdict for o in found.outcomes]
    said = ", ".join(f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts)
    lines = [f"\n{len(verdicts)} rows: {said}.\n"]
    ratio, mean = found.geometric_mean, found.mean
    if ratio is not None:
        number = sum(o.is_single and o.ratio is not None for o in found.outcomes)
        lines.append(
            f"\nGeometric mean of the ratios of {number} single operators' times: "
            f"**{ratio:.3f}**, aim {mean.band[0]:g} to {mean.band[1]:g}: {found.mean_verdict}. "
            f"Causes: {', '.join(mean.causes)}.\n"
        )
    return "".join(lines)


def _table(outcomes: Sequence[Outcome]) -> str:
    head = ("row", "machine", "published", "ours", "ratio", "floor", "band", "verdict", "causes",
            "role")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for o in outcomes:
        row = o.row
        ours = _shown(None if o.measured is None else o.measured.figure)
        cells = (
            row.id, row.machine_name, f"{row.figure:g} {row.unit}", ours, _shown(o.ratio),
            _shown(o.floor_ratio), f"{row.band[0]:g} to {row.band[1]:g}", str(o.verdict),
            ", ".join(row.causes), str(row.role),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _notes(outcomes: Sequence[Outcome]) -> str:
    lines: list[str] = []
    for o in outcomes:
        how = o.reason if o.measured is None else f"{o.measured.how} ({o.measured.examined})"
        note = "" if o.row.note is None else f" {o.row.note}"
        source = f"{o.row.source.citation} [{o.row.source.evidence}]."
        lines.append(f"- **{o.row.id}**: {source}{note} Ours: {how}.\n")
    return "".join(lines)


def _row(o: Outcome) -> dict[str, Any]:
    row, measured = o.row, o.measured
    return {
        "id": row.id,
        "machine": row.machine_name,
        "source": row.source.citation,
        "evidence": str(row.source.evidence),
        "role": str(row.role),
        "unit": str(row.unit),
        "published": row.figure,
        "ours": None if measured is None else _rounded(measured.figure),
        "ratio": _rounded(o.ratio),
        "floor_ratio": _rounded(o.floor_ratio),
        "band": list(row.band),
        "stated_miss": row.miss,
        "verdict": str(o.verdict),
        "causes": [str(cause) for cause in row.causes],
        "note": row.note,
        "how": o.reason if measured is None else measured.how,
        "examined": None if measured is None else measured.examined,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _shown(value: float | None) -> str:
    """Three digits, and no exponent for what a table holds."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.3g}"
