"""Progress on stderr: a bar on a terminal, one line per change otherwise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from service.cli.output import is_interactive, note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressView(AbstractContextManager["ProgressView"]):
    """Shows an upload, then stages and units; also the `ProgressSink` of a local compile."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._shown: tuple[object, ...] = ()
        self._quarter = 0

    def __enter__(self) -> Self:
        if is_interactive() and not self._quiet:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self._title, total=None)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def upload(self, sent_bytes: int, total_bytes: int) -> None:
        """Show bytes sent."""
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                description=f"{self._title}: upload",
                completed=sent_bytes,
                total=total_bytes,
            )
        elif sent_bytes == total_bytes:
            self._line("upload", total_bytes, "bytes sent")

    def job(self, job: dict[str, Any]) -> None:
        """Show a job document."""
        progress = job.get("progress") or {}
        self._stage = str(job.get("stage") or job.get("state") or "")
        self.units(
            int(progress.get("units_solved", 0)),
            int(progress.get("units_cached", 0)),
            int(progress.get("units_total", 0)),
        )

    def sweep(self, sweep: dict[str, Any]) -> None:
        """Show a sweep's document: items that have ended, and how long the rest takes."""
        counts = sweep["progress"]
        ended = counts["succeeded"] + counts["failed"] + counts["canceled"]
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        left = "" if sweep["eta_s"] is None else f", {sweep['eta_s']:.0f} s left"
        self._stage = f"{counts['running']} running{failed}{left}"
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, description=f"{self._title}: {self._stage}", completed=ended,
                total=counts["total"],
            )  # fmt: skip
        elif ended * 4 // counts["total"] != self._quarter or not self._shown:
            self._quarter = ended * 4 // counts["total"]
            self._line(f"{ended} of {counts['total']} items, {self._stage}")

    # --- ProgressSink -----------------------------------------------------------------------------

    def stage(self, name: str, state: str) -> None:
        """Show that a stage started; its end is the next one's start."""
        if state == "started":
            self._stage = name
            self._refresh(())

    def units(self, solved: int, cached: int, total: int) -> None:
        """Show how many units are solved or were cached."""
        self._refresh((solved, cached, total))

    def artifact(self, name: str, file_name: str) -> None:
        """Ignore: files are listed when all are there."""

    def _refresh(self, counts: tuple[int, ...]) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"{self._title}: {self._stage}")
            if counts and counts[2]:
                self._bar.update(self._task, completed=counts[0] + counts[1], total=counts[2])
            return
        if counts and counts[2]:
            done = counts[0] + counts[1]
            # A line per quarter: a log is read later, by somebody with little patience.
            if done == counts[2] or self._quarter != done * 4 // counts[2]:
                self._quarter = done * 4 // counts[2]
                text = f"{counts[0]} solved, {counts[1]} cached of {counts[2]} units"
                self._line(self._stage, text)
        else:
            self._line(self._stage)

    def _line(self, *parts: object) -> None:
        if self._quiet or parts == self._shown:
            return
        self._shown = parts
        note(" ".join([f"{self._title}:", *(str(part) for part in parts if part != "")]))
