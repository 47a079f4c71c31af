"""Explaining a layer as a payload: the bundle is somebody else's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from worker.compiler.errors import CompilerError
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.package.archive import damaged, open_archive, read_member
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest
from worker.compiler.package.manifest import MACHINE_NAME, Manifest
from worker.compiler.package.regenerate import read_machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import parse_schedule
from worker.explain.layer import Explanation, directed, explain, weighed
from worker.sandbox.answering import answer


def explained(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The layer `index` of the bundle `source`; `asks`: with candidates and other machines.

    `directives`: the layer as they have it, and both schedules' figures.

    Raises:
        CompilerError: TW-RUN-001 for damage, TW-CLI-001 for a layer that is not there or runs on
            the host, TW-DIRECTIVE-001 for directives that do not fit it.
    """
    index = int(request["index"])
    with open_archive(Path(request["source"])) as archive:
        manifest = read_manifest(archive)
        try:
            report = json.loads(read_member(archive, "report.json", DOCUMENT_LIMIT_BYTES))
            row = _row(report["layers"], index)
            schedule, machine = _kernel(archive, manifest, row)
            text = request.get("directives")
            if text is not None:
                other = directed(text, schedule, machine)
                found = explain(other, machine, CompileOptions(), row["signature"], asks=False)
                own = weighed(schedule, machine, row["signature"])
                new = weighed(other, machine, row["signature"])
                return {
                    **_document(index, row, found),
                    "predicted_cycles": None,  # nobody predicted what a user writes
                    "weighed": [
                        {"schedule": by, **asdict(each)}
                        for by, each in ((schedule.strategy, own), (other.strategy, new))
                    ],
                }
            asked_for = {
                k: v for k, v in report["options"].items() if k in ("effort", "without")
            }  # fmt: skip
            asked_for["strategy"] = schedule.strategy
            own = report["options"].get("strategy_options", {}).get(schedule.strategy)
            if own is not None:
                asked_for["strategy_options"] = {schedule.strategy: own}
            options = CompileOptions.from_json(asked_for)
            found = explain(
                schedule, machine, options, row["signature"], asks=bool(request["asks"])
            )  # fmt: skip
            return _document(index, row, found)
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(
                f"what the bundle says of layer {index} is not valid: {error!r}"
            ) from error


def _row(layers: list[dict[str, Any]], index: int) -> dict[str, Any]:
    row = next((row for row in layers if row["index"] == index), None)
    if row is None:
        raise CompilerError(
            "TW-CLI-001", f"there is no layer {index}", limit=len(layers), actual=index,
            remedy="`tilewright layers` lists them.",
        )  # fmt: skip
    if not row["signature"]:
        raise CompilerError(
            "TW-CLI-001", f"layer {index} is no kernel: it runs on the {row['placement']}",
            remedy="`tilewright placement` says why.",
        )  # fmt: skip
    return row


def _kernel(
    archive: ZipFile, manifest: Manifest, row: Mapping[str, Any]
) -> tuple[Schedule, Machine]:
    """The schedule of a layer, and the machine as its target sees it."""
    data = read_member(archive, MACHINE_NAME, DOCUMENT_LIMIT_BYTES)
    machine = read_machine(data, manifest.hardware.digest)
    own = [o for o in manifest.provenance if o.signature == row["signature"]]
    # Equal operators may be two kernels, for two targets or by two strategies.
    origin = next((o for o in own if set(row["onnx_nodes"]) <= set(o.onnx_nodes)), None)
    if origin is None:
        raise KeyError(row["signature"])
    text = read_member(archive, origin.schedule, DOCUMENT_LIMIT_BYTES).decode()
    return parse_schedule(text), machine.restricted(machine.target(origin.target))


def _document(index: int, row: Mapping[str, Any], found: Explanation) -> dict[str, Any]:
    sim = found.simulation
    return {
        "index": index,
        "onnx_nodes": row["onnx_nodes"],
        "signature": row["signature"],
        "strategy": found.strategy,
        "cycles": sim.cycles,
        "predicted_cycles": sim.predicted_cycles,
        "lower_bound_cycles": sim.lower_bound_cycles,
        "causes": [{"cause": c.cause, "cycles": c.cycles} for c in sim.causes],
        "operators": list(found.operators),
        "nest": [asdict(line) for line in found.nest],
        "room": [asdict(room) for room in found.room],
        "candidates": [asdict(candidate) for candidate in found.candidates],
        "what_if": [asdict(row) for row in found.what_if],
        "note": found.note,
    }


if __name__ == "__main__":
    sys.exit(answer(explained))
