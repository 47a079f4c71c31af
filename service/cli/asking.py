"""A verb's question about a foreign file, asked of a payload in the sandbox.

Whoever parses a file that somebody else made has the limits of a job, and is killed when it hangs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.connection import load_settings
from service.cli.failures import Failure, Told

if TYPE_CHECKING:
    from worker.sandbox.payload import Workplace


def asked(module: str, request: Mapping[str, Any], files: Sequence[Path], what: str) -> Any:
    """The answer of the payload `module`, which sees `files` where they are; `what` names the work.

    Raises:
        Told: the payload's own refusal, or a limit that it met.
        Failure: TW-INT-001, it ended without an answer.
    """
    with workplace() as place:
        return asked_in(place, module, request, files, what)


@contextmanager
def workplace() -> Iterator[Workplace]:
    """Folders of one payload; what it left in `out` is gone at the end."""
    from worker.sandbox.payload import Workplace

    with tempfile.TemporaryDirectory(prefix="tilewright-ask-") as folder:
        place = Workplace(Path(folder).resolve())
        place.create()
        yield place


def asked_in(
    place: Workplace, module: str, request: Mapping[str, Any], files: Sequence[Path], what: str
) -> Any:
    """As `asked`, for a payload that leaves files in `place`."""
    from worker.compiler.errors import CompilerError
    from worker.sandbox.asking import Died, Refused, ask
    from worker.sandbox.sandbox import End

    settings = load_settings()
    limits = settings.payload_limits(
        settings.wall_limit_s, sum(path.stat().st_size for path in files)
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
            read_only=tuple(files),
        )
    except Refused as refusal:
        raise Told(refusal.problem) from refusal
    except Died as death:
        if death.report.end is not End.WALL:
            raise Failure("TW-INT-001", f"the {what} ended early: {death}") from death
        late = CompilerError(
            "TW-SVC-008",
            f"the {what} ran longer than its wall limit of {limits.wall_s:g} s",
            limit=limits.wall_s,
            actual=limits.wall_s,
            remedy="Raise TILEWRIGHT_WALL_LIMIT_S, or give a smaller file.",
        )
        raise Told(dict(late.to_problem())) from death
