"""The payload's end of `asking`: read the request, do the work, send one frame.

The frame's body is the answer as JSON; lists of a large model's nodes do not fit a head.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker.compiler.errors import DISK_FULL, NO_ROOM, CompilerError
from worker.sandbox import wire

_MEMORY_WORDS = ("bad_alloc", "bad allocation", "Arena alloc failed", "Failed to allocate memory")


def failure_frame(error: Exception) -> dict[str, Any]:
    """What a payload says of the error that ended it: limits, refusals, and our bugs."""
    if isinstance(error, CompilerError):
        return {"op": "problem", "problem": error.to_problem()}
    text = str(error)
    if isinstance(error, MemoryError) or any(word in text for word in _MEMORY_WORDS):
        return {"op": "memory"}
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return {"op": "files"}
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        full = CompilerError(DISK_FULL, f"no room is left on the disk: {error.strerror}")
        return {"op": "problem", "problem": full.to_problem()}
    traceback.print_exception(error)
    bug = CompilerError("TW-INT-001", f"{type(error).__name__}: {text[:2000]}")
    return {"op": "problem", "problem": bug.to_problem()}


def answer(work: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> int:
    """Entry of a payload process `MODULE REQUEST.json CHANNEL`; give the exit code."""
    path, number = sys.argv[1:]
    with socket.socket(fileno=int(number)) as sock:
        # Processes the work starts (C compilers) must not hold the channel open.
        sock.set_inheritable(False)
        body = b""
        try:
            made = work(json.loads(Path(path).read_text(encoding="utf-8")))
            body = json.dumps(dict(made), separators=(",", ":")).encode()
            if len(body) > wire.MAX_BODY_BYTES:
                raise CompilerError(
                    "TW-SVC-017", f"its answer has {len(body)} bytes",
                    limit=wire.MAX_BODY_BYTES, actual=len(body), remedy="Ask for a part of it.",
                )  # fmt: skip
            frame: dict[str, Any] = {"op": "answer"}
        except Exception as error:  # the task boundary: the asker hears of anything
            frame, body = failure_frame(error), b""
        wire.send(sock, frame, body)
    return 0
