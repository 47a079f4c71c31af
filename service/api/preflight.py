"""Preflight over HTTP: the compiler's checks of a model for a machine, without a job."""

from __future__ import annotations

import re
from typing import Any

from service.api.deps import ApiState
from service.api.payloads import StoredFile, ask_about
from service.errors import Malformed
from service.store.records import HardwareRecord, ModelRecord
from service.text import is_carried
from worker.compiler.options import CompileOptions

_INTEGER = re.compile(r"[0-9]{1,18}")


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

    Raises: as `ask_about`; PayloadRefused where the model or the options are refused.
    """
    options = CompileOptions.from_json({"symbols": _symbols(pairs)})
    name = "model.zip" if model.kind == "zip" else "model.onnx"
    return ask_about(
        StoredFile(model.sha256, model.size_bytes, name),
        "worker.children.preflight_child",
        {"hardware": dict(spec.document), "options": options.to_json()},
        "preflight",
        path_field="model",
        settings=state.settings,
        blobs=state.blobs,
        slots=state.preflights,
    )
