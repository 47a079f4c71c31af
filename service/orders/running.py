"""A bundle run in the sandbox: its host parts and its C are somebody else's."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from worker.compiler.errors import CompilerError, InputError

if TYPE_CHECKING:
    from service.settings import Settings

_ORIGINS = ("compared", "regenerated", "trusted")


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


@dataclass(frozen=True, slots=True)
class Ran:
    """What it gave."""

    outputs: dict[str, Any]
    """Arrays by name."""
    origin: str
    """Kernels from the schedules that agree with the bundle's text (`compared`) or could not be
    compared (`regenerated`), or that text itself (`trusted`)."""
    profiles: list[Any]
    """One a repetition, where one was asked for."""


def run_bundle(asked: BundleRun, settings: Settings) -> Ran:
    """Run a bundle in a sandbox of its own.

    Raises:
        InputError: TW-CLI-001, a file is not there; TW-RUN-001 to -005, bundle or inputs are wrong.
        CompilerError: TW-RUN-006, it ended without a result; TW-SVC-009 or -017, a limit.
    """
    import zipfile

    from worker.sandbox.asking import Died, Refused, ask
    from worker.sandbox.compiled_loops import ensure_compiled_loops
    from worker.sandbox.payload import Workplace, open_left
    from worker.sandbox.problems import error_of
    from worker.sandbox.sandbox import End, Limits
    from worker.sandbox.wire import ProtocolError

    for path in (asked.bundle, asked.inputs):
        if not path.is_file():
            raise InputError("TW-CLI-001", f"{path}: there is no such file")
    bundle, inputs = asked.bundle.resolve(), asked.inputs.resolve()
    memory = settings.memory_base_bytes + int(
        settings.memory_per_model_byte * bundle.stat().st_size
    )
    with tempfile.TemporaryDirectory(prefix="tilewright-run-") as folder:
        place = Workplace(Path(folder).resolve())
        ensure_compiled_loops()
        place.create()
        request = {
            "bundle": str(bundle),
            "inputs": str(inputs),
            "profile": asked.profile,
            "repeat": asked.repeat,
            "trust": asked.trust,
            "output": str(place.out / "out.npz"),
            "build_dir": str(place.build),
        }
        try:
            answer = ask(
                "worker.children.run_child",
                request,
                place,
                limits=Limits(
                    settings.wall_limit_s,
                    memory,
                    settings.file_limit_bytes,
                    settings.process_limit,
                    settings.output_limit_bytes,
                ),
                choice=settings.isolation,
                search_path=settings.child_path,
                hidden=settings.data_dir,
                read_only=(bundle, inputs),
            )
            with open_left(place.out, "out.npz") as file:
                outputs = _plain_arrays(file)
        except Died as death:
            limit = f" of {settings.wall_limit_s:g} s" if death.report.end is End.WALL else ""
            raise CompilerError("TW-RUN-006", f"the bundle's run: {death}{limit}") from death
        except (ProtocolError, ValueError, zipfile.BadZipFile, EOFError, MemoryError) as error:
            raise CompilerError("TW-RUN-006", f"the run left no plain arrays: {error}") from error
        except Refused as refusal:
            raise error_of(refusal.problem) from None
    if answer.get("origin") not in _ORIGINS or not isinstance(answer.get("profiles"), list):
        raise CompilerError("TW-RUN-006", "the run answered nonsense")
    return Ran(outputs, answer["origin"], answer["profiles"])


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
