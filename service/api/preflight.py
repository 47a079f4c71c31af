"""Preflight over HTTP: the check runs in a process of its own, because it loads the model.

The API process must stay free of ONNX and numpy; a hostile model must not take it down either.
"""

from __future__ import annotations

import re
from typing import Any

from service.api.deps import ApiState
from service.errors import Malformed, ServiceError, Unavailable
from service.store.blobs import copy_to
from service.store.records import HardwareRecord, ModelRecord
from service.text import is_carried
from worker.compiler.options import CompileOptions
from worker.sandbox.asking import Died, Refused, ask
from worker.sandbox.held import own_folder
from worker.sandbox.payload import Workplace
from worker.sandbox.sandbox import End

LIMIT_S = 120
NICE = 10
"""Preflights give way to jobs."""
_INTEGER = re.compile(r"[0-9]{1,18}")


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
        Unavailable: too many are running, the child died or ran too long.
        CompilerError: TW-SVC-018, the isolation demanded does not work here.
    """
    settings = state.settings
    options = CompileOptions.from_json({"symbols": _symbols(pairs)})
    with (
        state.preflights.taken(),
        own_folder(settings.asked_dir, "preflight") as folder,
    ):
        place = Workplace(folder)
        place.create()
        path = place.given / ("model.zip" if model.kind == "zip" else "model.onnx")
        copy_to(state.blobs, model.sha256, path)
        request = {
            "model": str(path),
            "hardware": dict(spec.document),
            "options": options.to_json(),
        }
        try:
            return ask(
                "worker.children.preflight_child",
                request,
                place,
                limits=settings.payload_limits(LIMIT_S, model.size_bytes),
                choice=settings.isolation,
                search_path=settings.child_path,
                hidden=settings.data_dir,
                nice=NICE,
            )
        except Refused as refusal:
            raise PreflightRefused(refusal.problem) from refusal
        except Died as death:
            if death.report.end is End.WALL:
                message = f"preflight took longer than {LIMIT_S} s"
                raise Unavailable(message, limit=LIMIT_S) from death
            raise Unavailable(f"the preflight process died: {death}") from death
