"""Measured rates in a hardware document."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from worker.host_rates.fit import HostRates

DIGITS = 3
"""Significant ones that are written; runs of one machine differ in the next."""


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the system calls this machine's processor."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), platform.machine() or "unknown processor")[:80]


def with_host(document: Mapping[str, Any], rates: HostRates, name: str, how: str) -> dict[str, Any]:
    """The document with these rates of its host, each with `how` it was measured.

    The link to the accelerator, memory that both share and the energy of an operation cannot be
    measured from the host alone: they stay.  An energy was another processor's, unless the name is
    the same, and is marked a guess.  An efficiency goes, since the rates are sustained ones.
    """
    changed = deepcopy(dict(document))
    host = dict(changed["host"])
    host.pop("efficiency", None)
    for field in ("flops_per_s", "memory_bytes_per_s", "launch_overhead_s"):
        host[field] = {"value": float(f"{getattr(rates, field):.{DIGITS}g}"), "note": how}
    energy = host.get("energy_pj_per_flop")
    if energy is not None and host["name"] != name:
        value = energy["value"] if isinstance(energy, Mapping) else energy
        host["energy_pj_per_flop"] = {
            "value": value, "tag": "G", "note": f"of {host['name']}, not measured"[:500],
        }  # fmt: skip
    changed["host"] = {**host, "name": name}
    return changed
