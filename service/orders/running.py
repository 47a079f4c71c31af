"""A bundle run in the sandbox: its host parts and its C are somebody else's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from service.orders.in_sandbox import ask_of_bundle, existing, workplace
from worker.compiler.errors import CompilerError

if TYPE_CHECKING:
    from service.settings import Settings

_ORIGINS = ("compared", "regenerated", "trusted", "engines")


@dataclass(frozen=True, slots=True)
class BundleRun:
    """What a run is asked for."""

    bundle: Path
    inputs: Path
    """An .npz with one array per input."""
    repeat: int = 1
    """Times; engines are initialised in the first."""
    profile: bool = False
    """Measure, and leave out the checks (poisoned memory) that other runs make."""
    trust: bool = False
    """Run the bundle's C text as it came, instead of generating it anew."""
    interpret: int | None = None
    """Execute the regions' streams instead of kernels, in an order by this seed."""
    engine: str = ""
    """What all regions run on: an installed engine, or `kernels`; "": what their targets name."""
    link: Path | None = None
    """The kernel library that the bundle was linked with."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What it gave."""

    outputs: dict[str, Any]
    """Arrays by name."""
    origin: str
    """Kernels from the schedules that agree with the bundle's text (`compared`) or could not be
    compared (`regenerated`), that text itself (`trusted`), or none (`engines`)."""
    engines: list[str]
    """What regions ran on, by name; `kernels` among them."""
    profiles: list[Any]
    """One a repetition, where one was asked for."""


def run_bundle(asked: BundleRun, settings: Settings) -> Ran:
    """Run a bundle in a sandbox of its own.

    Raises:
        InputError: TW-CLI-001, a file is not there; TW-RUN-001 to -005, bundle or inputs are wrong;
            TW-LINK-001 to -007, the bundle needs another kernel library.
        SpecError: TW-PLUG-001 or -004, an engine is not installed, or reads other bytes.
        CompilerError: TW-RUN-006, it ended without a result; TW-SVC-009 or -017, a limit.
    """
    import zipfile

    from worker.sandbox.payload import open_left
    from worker.sandbox.wire import ProtocolError

    files = existing(asked.bundle, asked.inputs, *([asked.link] if asked.link else []))
    with workplace("tilewright-run-") as place:
        request = {
            "bundle": str(files[0]),
            "inputs": str(files[1]),
            "profile": asked.profile,
            "repeat": asked.repeat,
            "trust": asked.trust,
            "interpret": asked.interpret,
            "engine": asked.engine,
            "link": str(files[2]) if asked.link else None,
            "output": str(place.out / "out.npz"),
            "build_dir": str(place.build),
        }
        answer = ask_of_bundle("worker.children.run_child", request, place, files, settings, "run")
        try:
            with open_left(place.out, "out.npz") as file:
                outputs = _plain_arrays(file)
        except (ProtocolError, ValueError, zipfile.BadZipFile, EOFError, MemoryError) as error:
            raise CompilerError("TW-RUN-006", f"the run left no plain arrays: {error}") from error
    engines, profiles = answer.get("engines"), answer.get("profiles")
    if (
        answer.get("origin") not in _ORIGINS
        or not isinstance(profiles, list)
        or not isinstance(engines, list)
        or not all(isinstance(name, str) for name in engines)
    ):
        raise CompilerError("TW-RUN-006", "the run answered nonsense")
    return Ran(outputs, answer["origin"], engines, profiles)


def _plain_arrays(file: BinaryIO) -> dict[str, Any]:
    """The arrays of an .npz that a payload wrote.  Packed ones are refused: they may be vast.

    Raises:
        ValueError, EOFError, BadZipFile: it is no such file.
    """
    import zipfile

    import numpy as np

    with zipfile.ZipFile(file) as archive:
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("an array is packed")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
