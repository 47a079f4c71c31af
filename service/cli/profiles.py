"""Profiles of runs as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.cli.output import print_fields, print_table, print_text

_PARTS = ("launch_s", "transfer_s", "execute_s", "engine_s", "checks_s", "other_s")


def print_profiles(documents: Sequence[dict[str, Any]]) -> None:
    """Print a line per run, and the calls of the last with the ends of their lists of nodes."""
    from worker.report.node_names import node_span

    rows = [{"run": k, **document} for k, document in enumerate(documents, 1)]
    print_table(("run", "total_s", *_PARTS), rows)
    last = documents[-1]
    shares = ", ".join(f"{name} {value:.1f} %" for name, value in last["shares_pct"].items())
    engines = ", ".join(last["initialised_now"]) or "none"
    print_text(f"last run: {shares}; engines initialised: {engines}")
    print_fields(last, ("inputs_s", "outputs_s"))
    columns = (
        "position",
        "kind",
        "name",
        "target",
        "launch_s",
        "transfer_s",
        "execute_s",
        *(["cycles"] if any(call["cycles"] is not None for call in last["calls"]) else []),
        "onnx_nodes",
    )
    print_table(
        columns, [{**call, "onnx_nodes": node_span(call["onnx_nodes"])} for call in last["calls"]]
    )
