"""A request's question about a stored file, asked of a payload in a process of its own.

The API process must stay free of ONNX and numpy, and a hostile model must not take it down either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.api.preflight_slots import PreflightSlots
from service.errors import ServiceError, Unavailable
from service.settings import Settings
from service.store.blobs import BlobStore, copy_to
from worker.sandbox.asking import Died, Refused, ask
from worker.sandbox.held import own_folder
from worker.sandbox.payload import Workplace
from worker.sandbox.sandbox import End

LIMIT_S = 120
NICE = 10
"""Questions give way to jobs."""


class PayloadRefused(ServiceError):
    """A payload's own refusal, as it came."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("detail", "refused")), code=str(document["code"]))
        self.document = document

    def to_problem(self) -> dict[str, Any]:
        return self.document


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The file that is asked about, and the name that the payload is to find it by."""

    sha256: str
    size_bytes: int
    name: str


def ask_about(
    file: StoredFile,
    module: str,
    request: Mapping[str, Any],
    what: str,
    *,
    path_field: str,
    settings: Settings,
    blobs: BlobStore,
    slots: PreflightSlots,
) -> dict[str, Any]:
    """The answer of the payload `module` to `request`, whose `path_field` is the file's path.

    `what` names the work in messages.

    Raises:
        PayloadRefused: the payload's own refusal.
        Unavailable: too many are asked at once, the payload died or ran too long.
        CompilerError: TW-SVC-018, the isolation demanded does not work here.
    """
    with slots.taken(), own_folder(settings.asked_dir, what) as folder:
        place = Workplace(folder)
        place.create()
        path = place.given / file.name
        copy_to(blobs, file.sha256, path)
        try:
            return ask(
                module,
                {path_field: str(path), **request},
                place,
                limits=settings.payload_limits(LIMIT_S, file.size_bytes),
                choice=settings.isolation,
                search_path=settings.child_path,
                hidden=settings.data_dir,
                nice=NICE,
            )
        except Refused as refusal:
            raise PayloadRefused(refusal.problem) from refusal
        except Died as death:
            if death.report.end is End.WALL:
                message = f"{what} took longer than {LIMIT_S} s"
                raise Unavailable(message, limit=LIMIT_S) from death
            raise Unavailable(f"the process of {what} died: {death}") from death
