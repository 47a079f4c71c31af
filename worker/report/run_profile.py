"""The profile of a run as JSON."""

from __future__ import annotations

from typing import Any

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
                "counters": dict(call.counters),
                "onnx_nodes": list(program.calls[call.position].onnx_nodes),
            }
            for call in profile.calls
        ],
    }
