"""Assembling as a payload: the text is somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from worker.compiler.package.archive import damaged
from worker.compiler.package.stream.codec import encode_stream
from worker.compiler.package.stream.text import parse_region
from worker.sandbox.answering import answer


def assembled(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """`stream`: the bytes in hexadecimal digits, and their `sha256`.

    Raises:
        InputError: TW-RUN-001, the text is none of a whole region.
    """
    try:
        text = Path(request["source"]).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged(f"the text is not UTF-8: {error}") from error
    data = encode_stream(parse_region(text))
    return {"stream": data.hex(), "sha256": sha256(data).hexdigest()}


if __name__ == "__main__":
    sys.exit(answer(assembled))
