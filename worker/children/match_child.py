"""Matching patterns as a payload: the model and the spec are somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.compiler.options import CompileOptions
from worker.job.match import match_report
from worker.sandbox.answering import answer


def _work(request: Mapping[str, Any]) -> Mapping[str, Any]:
    options = CompileOptions.from_json(request["options"])
    return match_report(
        Path(request["model"]), request["hardware"], options, request.get("pattern")
    )


if __name__ == "__main__":
    sys.exit(answer(_work))
