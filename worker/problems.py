"""Problem documents as payloads send them: checked, because a payload is not trusted."""

from __future__ import annotations

from worker import wire
from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.errors import Detail


def problem_in(frame: wire.Frame) -> dict[str, Detail]:
    """The problem document of a frame.

    Raises:
        ProtocolError: it is none, or has a code that is not of the catalogue.
    """
    document = frame.head.get("problem")
    if not isinstance(document, dict) or document.get("code") not in ERROR_CATALOG:
        raise wire.ProtocolError("a problem needs a code of the catalogue")
    return document
