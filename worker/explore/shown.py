"""What was explored, as a table for a spreadsheet and as a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from worker.explore.chips import COSTS
from worker.report.plots import scatter, si
from worker.report.style import page_of
from worker.report.tables import html_table

FIGURES = (*COSTS, "cycles", "gap")
_AXES = {
    "energy_pj": "energy, pJ",
    "area_mm2": "area proxy, mm2",
    "on_chip_bytes": "on-chip bytes",
    "off_chip_bytes_per_s": "off-chip bytes per s",
}


def table_csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bytes:
    """A row for every chip: values of its fields, figures, whether it is on the front, and why it
    has no figures."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *FIGURES, "is_on_front", "why"])
    for row in rows:
        figures = ["" if row.get(name) is None else row[name] for name in FIGURES]
        writer.writerow([*row["values"], *figures, int(row["is_on_front"]), why(row)])
    return text.getvalue().encode()


def why(row: Mapping[str, Any]) -> str:
    """Why a chip has no figures; empty: it has."""
    if "refused" in row:
        return str(row["refused"])
    if "misfits" in row:
        first = row["misfits"][0]
        more = f" and {len(row['misfits']) - 1} more" if len(row["misfits"]) > 1 else ""
        return (
            f"{first['onnx_nodes'][0]} needs {first['demand']} of {first['resource']},"
            f" has {first['bound']}{more}"
        )
    return ""


def page(document: Mapping[str, Any], names: Sequence[str]) -> str:
    """One file, no scripts, no requests."""
    rows = document["rows"]
    priced = [row for row in rows if "latency_s" in row]
    title = f"{document['model']} on chips like {document['hardware']}"
    kept = [row for row in priced if row["is_on_front"]]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(rows)} chips, {len(priced)} with figures, {len(kept)} of which no other is better"
        f" than in {escape(', '.join(document['costs']))}. Estimates: kernels and host work of the"
        " program for the chip as it is, tiled anew; areas count bit cells and multipliers"
        " only.</p>",
    ]
    for cost in document["costs"]:
        if cost in _AXES:
            points = [
                (_label(row, names), row["latency_s"], row[cost], row["is_on_front"])
                for row in priced
            ]
            parts += [f"<h2>{escape(_AXES[cost])}</h2>", scatter(points, "latency, s", _AXES[cost])]
    if document["winners"]:
        columns = (*names, "strategy", "latency_s", "simulated_latency_s", "energy_pj",
                   "simulated_energy_pj", "folder", "error")  # fmt: skip
        won = html_table(columns, [_flat(row, names) for row in document["winners"]])
        parts += ["<h2>Compiled and simulated</h2>", won]
    table = html_table((*names, *FIGURES), [_flat(row, names) for row in kept])
    parts += ["<h2>The front</h2>", table]
    return page_of(title, parts)


def _flat(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {**row, **dict(zip(names, row["values"], strict=True))}


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    values = ", ".join(f"{n} {v}" for n, v in zip(names, row["values"], strict=True))
    return f"{values}: {si(row['latency_s'], 's')}, {si(row['energy_pj'] * 1e-12, 'J')}"
