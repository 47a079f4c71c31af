"""Preflight as a payload: the API process must neither import ONNX nor trust a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.compiler.options import CompileOptions
from worker.job.preflight import preflight
from worker.sandbox.answering import answer


def _work(request: Mapping[str, Any]) -> Mapping[str, Any]:
    options = CompileOptions.from_json(request["options"])
    return preflight(Path(request["model"]), request["hardware"], options)


if __name__ == "__main__":
    sys.exit(answer(_work))
