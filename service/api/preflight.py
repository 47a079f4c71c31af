"""Preflight over HTTP: the check runs in a process of its own, because it loads the model.

The API process must stay free of ONNX and numpy; a hostile model must not take it down either.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from service.api.deps import ApiState
from service.errors import Malformed, ServiceError, Unavailable
from service.store.blobs import copy_to
from service.store.records import HardwareRecord, ModelRecord
from service.text import is_carried
from worker.compiler.options import CompileOptions

LIMIT_S = 120
_INTEGER = re.compile(r"[0-9]{1,18}")
_IMPORT_ROOT = Path(__file__).parents[2]


class PreflightRefused(ServiceError):
    """The check ended with the compiler's own refusal."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("detail", "refused")), code=str(document["code"]))
        self.document = document

    def to_problem(self) -> dict[str, Any]:
        return self.document


def _symbols(pairs: tuple[str, ...]) -> dict[str, int]:
    symbols = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not (name and is_carried(name) and _INTEGER.fullmatch(value)):
            raise Malformed("set is NAME=INTEGER", pointer="query:set", actual=pair[:80])
        symbols[name] = int(value)
    return symbols


def run_preflight(
    state: ApiState, model: ModelRecord, spec: HardwareRecord, pairs: tuple[str, ...]
) -> dict[str, Any]:
    """Run the check in a child process and give its findings.

    Raises:
        PreflightRefused: the model or the options are refused.
        Unavailable: the child died or ran too long.
    """
    settings = state.settings
    memory = settings.memory_base_bytes + int(settings.memory_per_model_byte * model.size_bytes)
    options = CompileOptions.from_json({"symbols": _symbols(pairs)})
    with tempfile.TemporaryDirectory(prefix="tilewright-preflight-") as folder:
        path = Path(folder) / ("model.zip" if model.kind == "zip" else "model.onnx")
        copy_to(state.blobs, model.sha256, path)
        request = {
            "model": str(path),
            "hardware": dict(spec.document),
            "options": options.to_json(),
            "memory_bytes": memory,
            "cpu_s": LIMIT_S,
        }
        try:
            child = subprocess.run(
                [sys.executable, "-P", "-m", "worker.preflight_child"],
                input=json.dumps(request).encode(),
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
                # Nothing of the service's own environment: it may hold credentials.
                env={"PATH": settings.child_path, "PYTHONPATH": str(_IMPORT_ROOT), "HOME": folder},
                cwd=folder,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"preflight took longer than {LIMIT_S} s", limit=LIMIT_S) from error
    try:
        answer = json.loads(child.stdout)
    except ValueError as error:
        raise Unavailable("the preflight process died", actual=child.returncode) from error
    if not isinstance(answer, dict):
        raise Unavailable("the preflight process answered nonsense", actual=child.returncode)
    if child.returncode != 0 and "code" in answer:
        raise PreflightRefused(answer)
    return answer
