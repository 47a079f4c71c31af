"""The folder of a payload with what it is given, and the sandbox in which it runs."""

from __future__ import annotations

import json
from pathlib import Path

from service.bootstrap import Services
from service.errors import DigestMismatch, NotFound
from service.jobs.claim import Claim
from service.settings import Settings
from service.store.blobs import copy_to
from worker.compiler.stages import UNWATCHED, Watch
from worker.job.request import request_document
from worker.sandbox.isolation import Isolation
from worker.sandbox.payload import Workplace, payload_argv, payload_env
from worker.sandbox.sandbox import Limits, Sandbox

_REQUEST = "request.json"


def workplace_name(item_id: str, fence: int) -> str:
    """Name the folder of one attempt."""
    return f"{item_id.replace(':', '.')}.{fence}"


def furnish(services: Services, held: Claim, place: Workplace, *, is_helping: bool = False) -> None:
    """Put the model and the request where the child finds them.

    Raises:
        DigestMismatch: what is stored of the job is lost or damaged.
    """
    suffix = ".zip" if held.model.kind == "zip" else ".onnx"
    model = (place.given / "model").with_suffix(suffix)
    try:
        copy_to(services.blobs, held.model.sha256, model)
    except (NotFound, DigestMismatch) as error:
        raise DigestMismatch(
            f"the stored model is lost or damaged: {error.message}",
            limit=held.model.sha256,
            actual=error.actual,
        ) from error
    calibration, inputs = (
        _arrays(services, held, place, option) for option in ("calibration", "inputs")
    )
    document = request_document(
        model, held.model.name, held.hardware.document, held.job.options, calibration,
        place.build, place.out, inputs,
        watch=Watch(stop_after="schedule") if is_helping else UNWATCHED,
        part=None if is_helping else held.part,
        is_helping=is_helping,
    )  # fmt: skip
    (place.given / _REQUEST).write_text(json.dumps(document), encoding="utf-8")


def _arrays(services: Services, held: Claim, place: Workplace, option: str) -> Path | None:
    """Put the arrays that the job's `option` names beside its model; None when it has none."""
    digest = str(held.job.options.get(option) or "")
    if not digest:
        return None
    target = place.given / f"{option}.npz"
    try:
        copy_to(services.blobs, digest, target)
    except (NotFound, DigestMismatch) as error:
        raise DigestMismatch(
            f"the stored arrays of option {option} are lost or damaged: {error.message}",
            limit=digest,
            actual=error.actual,
        ) from error
    return target


def payload_sandbox(
    settings: Settings, isolation: Isolation, place: Workplace, limits: Limits, *, nice: int = 0
) -> Sandbox:
    """The sandbox in which a job's payload runs, `nice` steps below this process."""
    return Sandbox(
        payload_argv(
            "worker.children.sandbox_child",
            str(place.given / _REQUEST),
            "{channel}",
            "--runner",
            settings.runner,
            "--strategy-limit-s",
            str(settings.strategy_limit_s),
        ),
        env=payload_env(
            place,
            settings.child_path,
            threads=settings.child_threads,
            python_path=settings.child_python_path,
        ),
        cwd=place.temp,
        log_path=place.log,
        view=place.view(
            settings.child_path,
            settings.data_dir,
            tuple(Path(path) for path in settings.child_python_path),
        ),
        isolation=isolation,
        limits=limits,
        nice=nice,
    )
