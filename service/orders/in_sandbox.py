"""A bundle given to a payload: the parts that running and building one share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.compiler.errors import CompilerError, InputError

if TYPE_CHECKING:
    from service.settings import Settings
    from worker.sandbox.payload import Workplace


@contextmanager
def workplace(prefix: str) -> Iterator[Workplace]:
    """Folders of one payload, with the loops that it needs; gone at the end."""
    from worker.sandbox.compiled_loops import ensure_compiled_loops
    from worker.sandbox.payload import Workplace

    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        place = Workplace(Path(folder).resolve())
        ensure_compiled_loops()
        place.create()
        yield place


def ask_of_bundle(
    module: str,
    request: Mapping[str, Any],
    place: Workplace,
    files: tuple[Path, ...],
    settings: Settings,
    what: str,
) -> dict[str, Any]:
    """The answer of payload `module`, which sees `files`, the bundle first.

    Raises:
        CompilerError: its own refusal; TW-RUN-006, it ended without an answer.
    """
    from worker.sandbox.asking import Died, Refused, ask
    from worker.sandbox.problems import error_of
    from worker.sandbox.sandbox import End, Limits

    memory = settings.memory_base_bytes + int(
        settings.memory_per_model_byte * files[0].stat().st_size
    )
    limits = Limits(
        settings.wall_limit_s,
        memory,
        settings.file_limit_bytes,
        settings.process_limit,
        settings.output_limit_bytes,
    )
    try:
        return ask(
            module,
            request,
            place,
            limits=limits,
            choice=settings.isolation,
            search_path=settings.child_path,
            hidden=settings.data_dir,
            read_only=files,
        )
    except Died as death:
        limit = f" of {settings.wall_limit_s:g} s" if death.report.end is End.WALL else ""
        raise CompilerError("TW-RUN-006", f"the bundle's {what}: {death}{limit}") from death
    except Refused as refusal:
        raise error_of(refusal.problem) from None


def existing(*paths: Path) -> tuple[Path, ...]:
    """The paths, resolved.

    Raises:
        InputError: TW-CLI-001, one is no file.
    """
    for path in paths:
        if not path.is_file():
            raise InputError("TW-CLI-001", f"{path}: there is no such file")
    return tuple(path.resolve() for path in paths)
