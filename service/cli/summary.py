"""The short text of a report: what a user wants to know first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.cli.output import cell, note, print_fields, print_text
from worker.report.parts import causes_in

_SUMMARY = (
    "latency_cycles",
    "latency_s",
    "throughput_per_s",
    "energy_pj",
    "energy_low_pj",
    "energy_high_pj",
    "utilization_pct",
    "macs",
    "accelerator_ops",
    "host_ops",
    "kernels",
    "kernels_unique",
    "lower_bound_cycles",
    "lower_bound_by",
    "distance_to_bound",
    "roofline_cycles",
    "roofline_by",
    "distance_to_roofline",
    "bound_by",
)
_SHOWN_CAUSES = 4


def print_summary(report: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Print the head of a report: model, machine, numbers, cache (where `run` tells of it),
    verification, sanity."""
    if verdict := _part(report, "partition").get("host_verdict"):
        print_text(str(verdict))
    model, hardware = _part(report, "model"), _part(report, "hardware")
    print_text(f"{model.get('name', 'model')} on {hardware.get('name', 'hardware')}")
    print_fields(_part(report, "summary"), _SUMMARY)
    for row in _part(report, "partition").get("candidates") or []:
        print_text(f"regions {_candidate_line(row)}")
    if causes := causes_in(_part(report, "summary").get("causes")):
        print_text(f"cycles: {_causes_line(causes)}")
    if cache := _part(run, "cache"):
        hits, misses = int(cache.get("hits", 0)), int(cache.get("misses", 0))
        every = " (every unit)" if hits and not misses else ""
        print_text(f"cache: {hits} hits, {misses} misses{every}")
    print_text(_verification_line(_part(report, "verification")))
    failed = [row for row in report.get("sanity") or [] if not row.get("passed")]
    checks = len(report.get("sanity") or [])
    print_text(f"sanity: {checks - len(failed)} of {checks} checks passed")
    for row in failed:
        print_text(f"  FAILED {row.get('name')}: {row.get('detail')}")
    for warning in report.get("warnings") or []:
        note(f"warning {warning.get('code')}: {warning.get('message')}")


def _candidate_line(row: Mapping[str, Any]) -> str:
    """One way of choosing regions, and what came of it."""
    made = row.get("latency_cycles")
    cost = "no program" if made is None else f"{made} cycles, {row.get('regions')} regions"
    return f"{row.get('regions_by')}: {cost}{' (chosen)' if row.get('chosen') else ''}"


def _causes_line(causes: Sequence[tuple[str, int]]) -> str:
    """Give the largest shares of the cycles; the report has all."""
    total = max(1, sum(cycles for _, cycles in causes))
    shown = [f"{name} {100 * cycles / total:.1f} %" for name, cycles in causes[:_SHOWN_CAUSES]]
    more = len(causes) - len(shown)
    return ", ".join(shown) + (f", {more} more" if more else "")


def _part(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Give an object of the report; the report of a newer version may have another shape."""
    value = report.get(name)
    return value if isinstance(value, dict) else {}


def _verification_line(verification: Mapping[str, Any]) -> str:
    """The verdict; what was compared and what proves nothing is in the report's own words."""
    mode, passed = verification.get("mode", "none"), verification.get("passed")
    detail = verification.get("detail") or ""
    if passed is None:
        if verification.get("max_abs_err") is not None:
            return f"verification: {detail} (mode {mode})"
        return f"verification: not run (mode {mode}{f': {detail}' if detail else ''})"
    still = verification.get("insensitive") or []
    nothing = f"; independent of the inputs, so nothing is proven by {', '.join(still)}"
    return (
        f"verification: {'passed' if passed else 'FAILED'} (mode {mode}, against "
        f"{verification.get('reference')}, max relative error "
        f"{cell(verification.get('max_rel_err'))}, {verification.get('compared', 0)} comparisons"
        f"{nothing if still else ''})"
    )
