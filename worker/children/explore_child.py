"""Estimating chips for a bundle's kernels, as a payload: bundle and documents are somebody's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.explore.chips import Estimator
from worker.explore.fields import document_of, parse_field
from worker.explore.program import program_in
from worker.sandbox.answering import answer


def explored(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rows of the first of the `choices` of values of the fields `vary` of `document`, until
    `most_searches` kernels were tiled for the bundle `source`.

    Raises:
        CompilerError: TW-RUN-001 for damage, TW-OPT-001 for fields.
    """
    estimator = Estimator(program_in(Path(request["source"])))
    document = request["document"]
    fields = [parse_field(text, document) for text in request["vary"]]
    rows: list[dict[str, Any]] = []
    for choice in request["choices"]:
        if rows and estimator.searches >= request["most_searches"]:
            break
        rows.append(estimator.row(document_of(document, fields, choice)))
    return {"rows": rows, "kernels": len(estimator.base.kernels), "searches": estimator.searches}


if __name__ == "__main__":
    sys.exit(answer(explored))
