"""Which estimated chips are compiled: the best of the front, in what people look for first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.explore.front import front


def marked(rows: Sequence[dict[str, Any]], costs: Sequence[str]) -> list[dict[str, Any]]:
    """Say of every row (`is_on_front`) whether no other is better in `costs`; give those that have
    figures.  Of equal ones the first is on the front."""
    priced = [row for row in rows if "latency_s" in row]
    kept = set(front([[row[name] for name in costs] for row in priced]))
    for row in rows:
        row["is_on_front"] = False
    for k, row in enumerate(priced):
        row["is_on_front"] = k in kept
    return priced


def best_of(priced: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The fastest of the front, the thriftiest, the best product of both, the smallest, then those
    by the product; `number` at most."""
    kept = [row for row in priced if row["is_on_front"]]
    by_product = sorted(kept, key=lambda row: row["latency_s"] * row["energy_pj"])
    firsts = [
        min(kept, key=lambda row: (row["latency_s"], row["energy_pj"]), default=None),
        min(kept, key=lambda row: (row["energy_pj"], row["latency_s"]), default=None),
        *by_product[:1],
        min(kept, key=lambda row: (row["area_mm2"], row["latency_s"]), default=None),
    ]
    found: list[dict[str, Any]] = []
    for row in (*firsts, *by_product):
        if row is not None and row not in found:
            found.append(row)
    return found[:number]
