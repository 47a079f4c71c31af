"""A sweep's results as a page: for every model what its machines cost, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from worker.report.plots import scatter, si
from worker.report.style import page_of
from worker.report.tables import html_table

_AXES = {"energy_pj": "energy, pJ", "on_chip_bytes": "on-chip bytes"}
_FIGURES = ("latency_s", "energy_pj", "on_chip_bytes", "seconds", "state", "why")


def sweep_page(results: Mapping[str, Any]) -> str:
    """One file, no scripts, no requests.  `results` as `GET /v1/sweeps/{id}/results` gives them."""
    fields: Sequence[str] = results["fields"]
    items = results["items"]
    done = [item for item in items if item["state"] == "succeeded"]
    title = f"Sweep {results['id']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(items)} items, {len(done)} with results. Figures are simulated; for each model"
        " those are marked that no other item is better than in latency, energy and on-chip"
        " bytes.</p>",
    ]
    for model in dict.fromkeys(item["model"] for item in items):
        own = [item for item in items if item["model"] == model]
        parts.append(f"<h2>{escape(own[0]['model_name'] or model)}</h2>")
        for cost, axis in _AXES.items():
            points = [
                (_label(item, fields), item["latency_s"], item[cost], item["is_on_front"])
                for item in own
                if item["latency_s"] is not None and item[cost] is not None
            ]
            if points:
                parts.append(scatter(points, "latency, s", axis))
        best = sorted((i for i in own if i["is_on_front"]), key=lambda i: i["latency_s"])
        others = [item for item in own if not item["is_on_front"]]
        columns = ("number", "hardware_name", *fields, *_FIGURES)
        for name, rows in (("The front", best), ("The others", others)):
            if rows:
                table = html_table(columns, [_flat(item, fields) for item in rows])
                parts += [f"<h3>{name}</h3>", table]
    return page_of(title, parts)


def why(item: Mapping[str, Any]) -> str:
    """Why an item has no result; empty: it has one, or none yet."""
    error = item["error"]
    return f"{error.get('code')}: {error.get('detail')}" if error else ""


def _flat(item: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    values = item["values"] or [None] * len(fields)
    return {**item, **dict(zip(fields, values, strict=True)), "why": why(item)}


def _label(item: Mapping[str, Any], fields: Sequence[str]) -> str:
    values = item["values"] or [None] * len(fields)
    said = ", ".join(f"{n} {v}" for n, v in zip(fields, values, strict=True) if v is not None)
    figures = f"{si(item['latency_s'], 's')}, {si((item['energy_pj'] or 0.0) * 1e-12, 'J')}"
    return f"{item['number']} {item['hardware_name']} {said}: {figures}"
