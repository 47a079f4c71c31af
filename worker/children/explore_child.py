"""Estimating chips for a bundle's kernels, as a payload: bundle and documents are somebody's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.compiler.package.archive import damaged, open_archive, read_member
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest
from worker.compiler.schedule.text import parse_schedule
from worker.explore.chips import Base, Estimator, base_of
from worker.explore.fields import document_of, parse_field
from worker.sandbox.answering import answer


def explored(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rows of the first of the `choices` of values of the fields `vary` of `document`, until
    `most_searches` kernels were tiled for the bundle `source`.

    Raises:
        CompilerError: TW-RUN-001 for damage, TW-OPT-001 for fields.
    """
    estimator = Estimator(_base(Path(request["source"])))
    document = request["document"]
    fields = [parse_field(text, document) for text in request["vary"]]
    rows: list[dict[str, Any]] = []
    for choice in request["choices"]:
        if rows and estimator.searches >= request["most_searches"]:
            break
        rows.append(estimator.row(document_of(document, fields, choice)))
    return {"rows": rows, "kernels": len(estimator.base.kernels), "searches": estimator.searches}


def _base(path: Path) -> Base:
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        report = json.loads(read_member(archive, "report.json", DOCUMENT_LIMIT_BYTES))
        found = []
        for origin in manifest.provenance:
            text = read_member(archive, origin.schedule, DOCUMENT_LIMIT_BYTES).decode()
            try:
                schedule = parse_schedule(text)
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
                raise damaged(
                    f"what the bundle says of kernel {origin.kernel} is not valid: {error!r}"
                ) from error
            found.append(
                (origin.kernel, origin.signature, schedule.graph, schedule.strategy,
                 origin.onnx_nodes, origin.target)
            )  # fmt: skip
    return base_of(found, report)


if __name__ == "__main__":
    sys.exit(answer(explored))
