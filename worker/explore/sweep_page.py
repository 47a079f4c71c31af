"""A sweep's results as a page: for every model what its machines cost, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from worker.report.plots import scatter, si
from worker.report.style import page_of
from worker.report.tables import html_table

_AXES = {"energy_pj": "energy, pJ", "on_chip_bytes": "on-chip bytes"}
_ESTIMATED = (
    "latency_s", "energy_pj", "on_chip_bytes", "area_mm2", "off_chip_bytes_per_s", "cycles", "gap",
)  # fmt: skip
_FIGURES = ("latency_s", "energy_pj", "on_chip_bytes", "seconds", "state", "why")


def sweep_page(results: Mapping[str, Any]) -> str:
    """One file, no scripts, no requests.  `results` as `GET /v1/sweeps/{id}/results` gives them."""
    fields: Sequence[str] = results["fields"]
    items = results["items"]
    done = [item for item in items if item["state"] == "succeeded"]
    estimated = sum(len(item["estimates"]) for item in items)
    title = f"Sweep {results['id']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(items)} items, {len(done)} with results. Figures are simulated; for each model"
        " those are marked that no other item is better than in latency, energy and on-chip"
        " bytes.</p>",
    ]
    if estimated:
        parts.append(
            f"<p>{estimated} machines are estimated: kernels of the program for the base, tiled"
            " anew. Plots of estimates come first, then those of machines that were compiled.</p>"
        )
    for model in dict.fromkeys(item["model"] for item in items):
        own = [item for item in items if item["model"] == model]
        parts.append(f"<h2>{escape(own[0]['model_name'] or model)}</h2>")
        guesses = [row for item in own for row in item["estimates"] if row["latency_s"] is not None]
        for cost, axis in _AXES.items() if guesses else ():
            drawn = [
                (_said(row, fields), row["latency_s"], row[cost], row["is_on_front"])
                for row in guesses
            ]
            parts.append(scatter(drawn, "estimated latency, s", f"estimated {axis}"))
        for cost, axis in _AXES.items():
            points = [
                (_label(item, fields), item["latency_s"], item[cost], item["is_on_front"])
                for item in own
                if item["latency_s"] is not None and item[cost] is not None
            ]
            if points:
                parts.append(scatter(points, "latency, s", axis))
        best = sorted((i for i in own if i["is_on_front"]), key=lambda i: i["latency_s"])
        others = [item for item in own if not item["is_on_front"] and not item["estimates"]]
        compared = ("estimated_latency_s", "estimated_energy_pj") if estimated else ()
        columns = ("number", "hardware_name", *fields, *_FIGURES, *compared)
        for name, rows in (("The front", best), ("The others", others)):
            if rows:
                table = html_table(columns, [_flat(item, fields) for item in rows])
                parts += [f"<h3>{name}</h3>", table]
        if best_guesses := [row for row in guesses if row["is_on_front"]]:
            best_guesses.sort(key=lambda row: row["latency_s"])
            shown = [
                {**row, **dict(zip(fields, row["values"], strict=True))} for row in best_guesses
            ]
            table = html_table((*fields, *_ESTIMATED), shown)
            parts += ["<h3>The front of estimates</h3>", table]
    return page_of(title, parts)


def why(item: Mapping[str, Any]) -> str:
    """Why an item has no result; empty: it has one, or none yet."""
    error = item["error"]
    return f"{error.get('code')}: {error.get('detail')}" if error else ""


def _flat(item: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    values = item["values"] or [None] * len(fields)
    guess = item["estimate"] or {}
    guessed = {f"estimated_{name}": guess.get(name) for name in ("latency_s", "energy_pj")}
    return {**item, **dict(zip(fields, values, strict=True)), **guessed, "why": why(item)}


def _label(item: Mapping[str, Any], fields: Sequence[str]) -> str:
    return f"{item['number']} {item['hardware_name']} {_said(item, fields)}"


def _said(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Values and figures of an item, or of an estimate."""
    values = row["values"] or [None] * len(fields)
    said = ", ".join(f"{n} {v}" for n, v in zip(fields, values, strict=True) if v is not None)
    figures = f"{si(row['latency_s'], 's')}, {si((row['energy_pj'] or 0.0) * 1e-12, 'J')}"
    return f"{said}: {figures}"
