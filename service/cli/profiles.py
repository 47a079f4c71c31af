"""Profiles of runs, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from service.cli.output import print_fields, print_table, print_text

if TYPE_CHECKING:
    from worker.compiler.isa.program import Program
    from worker.compiler.package.profile import InvocationProfile

_PARTS = ("launch_s", "transfer_s", "execute_s", "engine_s", "checks_s", "other_s")


def profile_document(profile: InvocationProfile, program: Program) -> dict[str, Any]:
    """One run as JSON; seconds, and the percentages of what recurs in every run.

    `program` is the one that ran: it knows which ONNX nodes each call computes.
    """
    recurring = ("launch_s", "transfer_s", "execute_s")
    whole = sum(getattr(profile, name) for name in recurring)
    return {
        "total_s": profile.total_s,
        **{name: getattr(profile, name) for name in _PARTS},
        "shares_pct": {
            name.removesuffix("_s"): 100.0 * getattr(profile, name) / whole if whole else 0.0
            for name in recurring
        },
        "initialised_now": list(profile.initialised_now),
        "inputs_s": profile.inputs_s,
        "outputs_s": profile.outputs_s,
        "calls": [
            {
                **{name: getattr(call, name) for name in call.__slots__},
                "onnx_nodes": list(program.calls[call.position].onnx_nodes),
            }
            for call in profile.calls
        ],
    }


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
        "onnx_nodes",
    )
    print_table(
        columns, [{**call, "onnx_nodes": node_span(call["onnx_nodes"])} for call in last["calls"]]
    )
