"""run.json: what one run was like, beside the report, which is the same for every run.

`cache` has what was looked up (`units`: the outcome by a kernel's signature), `timings` the seconds
of each stage.  A cold and a warm compile differ in nothing else.  Imports no compiler: the command
line and the server read it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from worker.compiler.errors import Detail

if TYPE_CHECKING:
    from worker.compiler.cache import CacheEvent

RUN_VERSION = 1
"""Of run.json."""
_APART_SINCE = 3
"""Version of report.json from which on it tells nothing of its run."""


def run_document(
    signatures: Sequence[str], events: Sequence[CacheEvent], timings: Mapping[str, float]
) -> dict[str, Detail]:
    """What run.json holds: `signatures` are those of the kernels, in their order."""
    outcomes = cache_outcomes(signatures, events)
    return {
        "schema_version": RUN_VERSION,
        "cache": {
            "hits": sum(o == "hit" for o in outcomes.values()),
            "misses": sum(o == "miss" for o in outcomes.values()),
            "units": dict[str, Detail](outcomes),
            "entries": [
                {"kind": e.kind, "digest": e.digest, "outcome": e.outcome, "node": e.label}
                for e in events
            ],
        },
        "timings": {**timings},
    }


def cache_outcomes(signatures: Iterable[str], events: Iterable[CacheEvent]) -> dict[str, str]:
    """`hit` or `miss` per kernel: it is a hit when every look-up for it was one."""
    seen: dict[str, list[str]] = {}
    for event in events:
        seen.setdefault(event.signature, []).append(event.outcome)
    return {
        signature: "hit" if all(o == "hit" for o in seen[signature]) else "miss"
        for signature in signatures
        if signature in seen
    }


def is_apart(report: Mapping[str, Any]) -> bool:
    """Whether the run is told of in run.json; older reports tell of it themselves."""
    version = report.get("schema_version")
    return isinstance(version, int) and version >= _APART_SINCE


def with_outcomes(layers: object, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a report's layers with `cache`, the outcome of each kernel; None where nothing tells.

    The report and the run may be anybody's: what has another shape is left out.
    """
    cache = run.get("cache")
    units = cache.get("units") if isinstance(cache, dict) else None
    outcomes = units if isinstance(units, dict) else {}
    rows = [row for row in layers if isinstance(row, dict)] if isinstance(layers, list) else []
    return [{**row, "cache": outcomes.get(str(row.get("signature")))} for row in rows]


def run_of_old(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report told of its run before version 3; nothing where it tells nothing, as a bundle's
    does."""
    cache, timings = report.get("cache"), report.get("timings")
    found: dict[str, Any] = {}
    if isinstance(cache, dict):
        layers = report.get("layers")
        rows = [row for row in layers if isinstance(row, dict)] if isinstance(layers, list) else []
        units = {str(row["signature"]): row.get("cache") for row in rows if row.get("signature")}
        found["cache"] = {**cache, "units": units}
    if isinstance(timings, dict):
        found["timings"] = timings
    return found
