"""The short text of a report: what a user wants to know first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.cli.output import cell, note, print_fields, print_text

_SUMMARY = (
    "latency_cycles",
    "latency_s",
    "throughput_per_s",
    "energy_pj",
    "utilization_pct",
    "macs",
    "accelerator_ops",
    "host_ops",
    "kernels",
    "kernels_unique",
    "lower_bound_cycles",
    "lower_bound_by",
    "distance_to_bound",
)


def print_summary(report: Mapping[str, Any]) -> None:
    """Print the head of a report: model, machine, numbers, cache, verification, sanity."""
    model, hardware = report.get("model") or {}, report.get("hardware") or {}
    print_text(f"{model.get('name', 'model')} on {hardware.get('name', 'hardware')}")
    print_fields(report.get("summary") or {}, _SUMMARY)
    cache = report.get("cache") or {}
    hits, misses = int(cache.get("hits", 0)), int(cache.get("misses", 0))
    every = " (every unit)" if hits and not misses else ""
    print_text(f"cache: {hits} hits, {misses} misses{every}")
    print_text(_verification_line(report.get("verification") or {}))
    failed = [row for row in report.get("sanity") or [] if not row.get("passed")]
    checks = len(report.get("sanity") or [])
    print_text(f"sanity: {checks - len(failed)} of {checks} checks passed")
    for row in failed:
        print_text(f"  FAILED {row.get('name')}: {row.get('detail')}")
    for warning in report.get("warnings") or []:
        note(f"warning {warning.get('code')}: {warning.get('message')}")


def _verification_line(verification: Mapping[str, Any]) -> str:
    mode, passed = verification.get("mode", "none"), verification.get("passed")
    if passed is None:
        reason = verification.get("reason")
        return f"verification: not run (mode {mode}{f': {reason}' if reason else ''})"
    return (
        f"verification: {'passed' if passed else 'FAILED'} (mode {mode}, against "
        f"{verification.get('reference')}, max relative error "
        f"{cell(verification.get('max_rel_err'))})"
    )
