"""FORMATS.md: the page that describes every member of a bundle, and travels in it."""

from __future__ import annotations

from importlib.resources import files

FORMATS_NAME = "FORMATS.md"


def formats_page() -> str:
    """The page's text."""
    return files("worker.compiler.package").joinpath(FORMATS_NAME).read_text(encoding="utf-8")
