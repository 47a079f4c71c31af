"""A bundle's library, built in the sandbox and put into a folder of the user's."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from service.orders.in_sandbox import ask_of_bundle, existing, workplace
from worker.compiler.errors import CompilerError, InputError

if TYPE_CHECKING:
    from service.settings import Settings

_FILES = frozenset({"libmodel.so", "tilewright.h", "host.onnx"})
_SOURCES = "src"


@dataclass(frozen=True, slots=True)
class BundleBuild:
    """What a build is asked for."""

    bundle: Path
    folder: Path
    """Made where it is missing; files of the same names are replaced."""
    sources: bool = False
    """Leave the C sources in `src/` instead of a library."""


@dataclass(frozen=True, slots=True)
class BuiltBundle:
    """What it gave."""

    files: tuple[str, ...]
    """Relative to the folder."""
    model: str
    digest: str
    """Of the bundle's program: library and `host.onnx` carry it."""
    document: dict[str, Any]
    """What the library says of itself: inputs, outputs, regions."""


def build_bundle(asked: BundleBuild, settings: Settings) -> BuiltBundle:
    """Build a bundle's library in a sandbox of its own.

    Raises:
        InputError: TW-CLI-001, the bundle is not there, or sources are; TW-RUN-001 to -005, the
            bundle is wrong; TW-LIB-010, there is no library of it.
        CompilerError: TW-RUN-006, it ended without a library; TW-SVC-009 or -017, a limit.
    """
    from worker.sandbox.payload import open_left
    from worker.sandbox.wire import ProtocolError

    files = existing(asked.bundle)
    if asked.sources and (asked.folder / _SOURCES).exists():
        there = asked.folder / _SOURCES
        raise InputError(
            "TW-CLI-001", f"{there} is there already: what is in it would be compiled, too"
        )
    with workplace("tilewright-build-") as place:
        request = {
            "bundle": str(files[0]),
            "out": str(place.out),
            "build_dir": str(place.build),
            "sources": asked.sources,
        }
        answer = ask_of_bundle(
            "worker.children.build_child", request, place, files, settings, "build"
        )
        names = answer.pop("files", None)
        model, digest = answer.get("model"), answer.get("digest")
        if not isinstance(names, list) or not isinstance(model, str) or not isinstance(digest, str):
            raise CompilerError("TW-RUN-006", "the build answered nonsense")
        try:
            for name in names:
                _require_own(name)
                target = asked.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(target.name + ".part")
                with open_left(place.out, name) as made, part.open("wb") as kept:
                    shutil.copyfileobj(made, kept)
                os.replace(part, target)  # whoever runs the old library goes on with it
        except ProtocolError as error:
            raise CompilerError("TW-RUN-006", f"the build left no files: {error}") from error
    return BuiltBundle(tuple(names), model, digest, answer)


def _require_own(name: object) -> None:
    """Check that a payload's file is one that a build makes."""
    if isinstance(name, str):
        parts = PurePosixPath(name).parts
        if name in _FILES or (parts[:1] == (_SOURCES,) and ".." not in parts):
            return
    raise CompilerError("TW-RUN-006", "the build answered with a file that it does not make")
