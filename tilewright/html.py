"""Small tables for notebooks.  Names come from models, which may be anybody's: all are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from worker.report.parts import layer_parts

_SUMMARY = (
    "latency_cycles", "latency_s", "energy_pj", "edp", "throughput_per_s", "utilization_pct",
    "kernels", "accelerator_ops", "host_ops", "lower_bound_by", "distance_to_bound",
    "roofline_by", "distance_to_roofline",
    "bound_by",
)  # fmt: skip
_STRATEGIES = ("name", "chosen", "latency_cycles", "energy_pj", "offchip_bytes", "reason")
_LAYERS = ("index", "part", "op_type", "placement", "cycles_total", "pct_cycles", "bound_by",
           "utilization_pct", "energy_pct")  # fmt: skip
MOST_LAYERS = 10
"""A notebook shows the slowest; `layers` has all."""


def result_page(report: Mapping[str, Any]) -> str:
    """The head of a report: figures, verification, programs that competed, slowest layers."""
    summary, verification = report["summary"], report["verification"]
    title = f"{report['model']['name']} on {report['hardware']['name']}"
    verdict = {True: "passed", False: "FAILED", None: "not run"}[verification["passed"]]
    parts = layer_parts(report["layers"], summary["latency_cycles"])
    layers = sorted(parts, key=lambda row: -(row["cycles_total"] or 0))
    shown = layers[:MOST_LAYERS]
    of_all = f"slowest {len(shown)} of {len(layers)}" if len(layers) > len(shown) else "all"
    return "".join(
        (
            f"<h4>{escape(title)}</h4>",
            table(("figure", "value"), [(name, summary.get(name)) for name in _SUMMARY]),
            f"<p>verification: {verdict} (mode {escape(str(verification['mode']))})</p>",
            _named("programs that competed", _STRATEGIES, report.get("strategies") or []),
            _named(f"layers, {of_all}", _LAYERS, shown),
        )
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table of plain values."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_shown(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _named(title: str, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    return f"<p>{escape(title)}</p>" + table(columns, [[r.get(c) for c in columns] for r in rows])


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
