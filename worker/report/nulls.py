"""Why a number of the report is null: one sentence per place, so that no absence is silent."""

from __future__ import annotations

from collections.abc import Mapping

from worker.compiler.errors import Detail
from worker.report.sections import cell_sentence, null_sentences

_HOST = {
    "group_id": "a host part is no kernel and belongs to no group",
    "signature": "only kernels have a signature",
    "tile": "host parts are not tiled",
    "cores": "host parts run on no accelerator core",
    "peak_buffer_bytes": "host parts use no accelerator buffer",
    "utilization_pct": "host parts use no accelerator engine",
    "predicted_cycles": "the cost model predicts kernels only",
}
_NO_CAUSE = {
    "bound_by": "it takes no cycle, so nothing is to blame",
    "lower_bound_by": "it may take no cycle at all",
}
_SHARE_OF_NOTHING = "the total it is a share of is zero"


def null_reasons(document: Mapping[str, Detail]) -> dict[str, Detail]:
    """Sentences by place (`summary.FIELD`, `verification.FIELD`, `layers.PLACEMENT.FIELD`,
    `summaries.STRATEGY.FIELD`).

    Exactly the nulls of these blocks of `document` are listed, in the order met.
    """
    found: dict[str, Detail] = {}
    for key in _nulls(document["summary"]):
        found[f"summary.{key}"] = _NO_CAUSE.get(key, _SHARE_OF_NOTHING)
    verification = document["verification"]
    for key in _nulls(verification):
        detail = verification.get("detail") if isinstance(verification, dict) else None
        verdict = verification.get("passed") if isinstance(verification, dict) else None
        did_run = verdict is not None or str(detail).startswith("not verified, because")
        found[f"verification.{key}"] = str(detail) if did_run else f"no kernel was run: {detail}"
    layers = document["layers"]
    for row in layers if isinstance(layers, list) else ():
        placement = row.get("placement") if isinstance(row, dict) else None
        for key in _nulls(row):
            sentence = _HOST.get(key) if placement == "host" else cell_sentence(document, key)
            other = _NO_CAUSE.get(key, _SHARE_OF_NOTHING)
            found[f"layers.{placement}.{key}"] = sentence or other
    return {**found, **null_sentences(document)}


def _nulls(block: Detail) -> list[str]:
    return [k for k, v in block.items() if v is None] if isinstance(block, dict) else []
