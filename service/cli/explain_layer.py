"""`explain layer`: the loop nest of a kernel, what holds it, and what more would bring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.cli.asking import asked
from service.cli.output import cell, note, print_json, print_table, print_text
from service.cli.sources import bundle_of

GAIN = 0.001
"""Share of the cycles below which a resource brings nothing."""


def explain_layer(
    index: int, source: Path, directives: Path | None, *, asks: bool, as_json: bool
) -> None:
    """Ask a payload, and print what it says.

    `directives`: a file with those to run instead of the layer's own schedule.

    Raises:
        Told: TW-CLI-001 for a layer that is not there or is no kernel, TW-RUN-001 for damage.
    """
    path = bundle_of(source).resolve()
    asks = asks and directives is None
    if asks:
        note("searching again with twice as much of each resource; --no-what-if leaves that out")
    request: dict[str, Any] = {"source": str(path), "index": index, "asks": asks}
    if directives is not None:
        request["directives"] = directives.read_text(encoding="utf-8", errors="replace")
    found: dict[str, Any] = asked("worker.children.explain_child", request, [path], "explanation")
    if as_json:
        print_json(found)
        return
    nodes = found["onnx_nodes"]
    many = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    print_text(f"layer {index}, by {found['strategy']}: {', '.join(nodes[:3])}{many}")
    total = found["cycles"]
    spent = ", ".join(
        f"{row['cause']} {100 * row['cycles'] / max(total, 1):.1f} %" for row in found["causes"][:5]
    )
    predicted = "" if directives else f"predicted {cell(found['predicted_cycles'])}, "
    print_text(
        f"{cell(total)} cycles from its start ({predicted}"
        f"no schedule takes less than {cell(found['lower_bound_cycles'])}): {spent}"
    )
    if directives is not None:
        print_table(
            ("schedule", "cycles", "home_bytes", "energy_pj"), found["weighed"],
            {"schedule": "schedule", "cycles": "cycles", "home_bytes": "home bytes",
             "energy_pj": "pJ"},
        )  # fmt: skip
    for room in found["room"]:
        share = 100 * room["peak_bytes"] / max(room["usable_bytes"], 1)
        print_text(
            f"{room['memory']}: {cell(room['peak_bytes'])} of {cell(room['usable_bytes'])} bytes"
            f" in use at most ({share:.0f} %)"
        )
    print_text("\noperators (* is summed over)")
    for operator in found["operators"]:
        print_text(f"  {operator}")
    print_text("\nwhat runs")
    for line in found["nest"]:
        print_text(f"  {'  ' * line['depth']}{line['text']}{_said(line)}")
    if not asks:
        return
    if found["note"]:
        note(f"not searched again: {found['note']}")
        return
    print_text("\nwhat its strategy offers")
    print_table(
        ("number", "cycles", "predicted_cycles", "is_chosen", "why"), found["candidates"],
        {"number": "candidate", "cycles": "cycles", "predicted_cycles": "predicted",
         "is_chosen": "this one", "why": "why not"},
    )  # fmt: skip
    _print_what_if(found["what_if"])


def _said(line: Mapping[str, Any]) -> str:
    """What a line of the nest does in all."""
    if line["tile_bytes"] is not None:
        return f"  ({cell(line['tile_bytes'])} B)"
    if line["instructions"] is None:
        return ""
    parts = [f"{cell(line['instructions'])} x"]
    if line["moved_bytes"] is not None:
        parts.append(f"{cell(line['moved_bytes'])} B")
    else:
        parts.append(f"{cell(line['cycles'])} cycles of its engines")
    return f"  ({', '.join(parts)})"


def _print_what_if(rows: list[dict[str, Any]]) -> None:
    print_text("\nwith twice as much, or half the wait, and the best schedule for it")
    gains = [row for row in rows if row["factor"] is None or abs(row["factor"] - 1) >= GAIN]
    gains.sort(key=lambda row: -(row["factor"] or 0))
    if gains:
        print_table(
            ("resource", "change", "cycles", "factor", "is_other_schedule"), gains,
            {"resource": "resource", "change": "change", "cycles": "cycles", "factor": "faster by",
             "is_other_schedule": "other schedule"},
        )  # fmt: skip
    others = [row["resource"] for row in rows if row not in gains]
    if others:
        print_text(f"nothing from {', '.join(others)}")
