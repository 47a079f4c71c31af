"""The text of `tilewright_rt.h`, the portable reference of the intrinsics."""

from __future__ import annotations

from importlib.resources import files

HEADER_NAME = "tilewright_rt.h"


def runtime_header() -> str:
    """The header that every kernel includes; ships in each bundle, a vendor replaces it."""
    return files("worker.compiler.codegen").joinpath(HEADER_NAME).read_text(encoding="utf-8")
