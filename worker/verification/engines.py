"""Regions on the engines that their targets name, beside the kernels: equal, or a row says so.

An engine gets copies of what goes into a region, from the bundle that was written, and what it puts
out is compared with what the kernels left in the home memory.  Integers must be equal bit for bit;
floats may differ as kernels from a reference, since an engine adds in an order of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from worker.compiler.isa.program import UnitCall
from worker.compiler.package.archive import open_archive, read_member
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest
from worker.compiler.package.engines import OpenEngines
from worker.compiler.package.executable import Array
from worker.compiler.package.executor import ModelRunner
from worker.compiler.package.home_region import EngineImage, Places, image_of
from worker.compiler.package.manifest import body_prefix
from worker.compiler.package.verify_numerics import compare_outputs
from worker.report.verified_row import VerifiedRow


class EngineWatch:
    """One region: what the kernels were given is given to the engine, once."""

    def __init__(
        self, image: EngineImage, there: OpenEngines, runner: ModelRunner, label: str,
        bound: float, found: Callable[[VerifiedRow, str], None],
    ) -> None:  # fmt: skip
        """`bound`: of floats, in the measure of `compare_outputs`; `found` takes rows, and why."""
        self._image = image
        self._there = there
        self._runner = runner
        self._label = label
        self._bound = bound
        self._found = found
        self._given: dict[str, Array] = {}
        self._is_done = False

    def entered(self, read: Callable[[str], Array]) -> None:
        """Keep copies of the inputs: kernels may reuse their storage."""
        if not self._is_done:
            self._given = {name: read(name) for name in self._image.inputs}

    def left(self, read: Callable[[str], Array]) -> None:
        """Run the engine on them, and compare.

        Raises:
            CompilerError: TW-PLUG-003, the engine failed.
        """
        if self._is_done:
            return
        self._is_done = True
        want = {name: read(name) for name in self._image.outputs}
        got = {name: np.empty_like(value) for name, value in want.items()}
        for value in got.values():
            value.reshape(-1).view(np.uint8)[:] = 0xFF
        model, metadata = self._runner.model, self._runner.metadata
        ends = {name: _bytes(value).toreadonly() for name, value in self._given.items()}
        ends |= {name: _bytes(value) for name, value in got.items()}
        region = self._there.region(self._image.engine, self._image.content)
        region.bind(Places(ends, frozenset(model.constants), metadata))
        region.execute()
        self._given = {}
        for name, value in want.items():
            self._found(*self._row(name, got[name], value))

    def _row(self, name: str, got: Array, want: Array) -> tuple[VerifiedRow, str]:
        label = f"{self._label}: {name}"
        if got.tobytes() == want.tobytes():
            return VerifiedRow(label, 0.0, 0.0, 0.0), ""
        if want.dtype.kind == "f":
            row = compare_outputs({name: got}, {name: want}, self._bound).outputs[0]
            return VerifiedRow(label, row.max_abs_err, row.max_rel_err, row.tolerance), row.reason
        num = int(np.count_nonzero(got != want))
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
        why = f"{num} of {want.size} elements are not those of the compiled kernels"
        return VerifiedRow(label, float(apart.max()), float(apart.max()), 0.0), why


def watch_engines(
    runner: ModelRunner,
    bundle: Path,
    folder: Path,
    bound: float,
    found: Callable[[VerifiedRow, str], None],
) -> tuple[str, ...]:
    """Let every region of the bundle whose target names an engine run there as well; gives the
    names of those engines, once each.

    `folder`: where engines may keep files.
    """
    there = OpenEngines(folder)
    used: dict[str, None] = {}
    with open_archive(bundle) as archive:
        rows = read_manifest(archive).regions

        def read(name: str) -> bytes:
            return read_member(archive, name, DOCUMENT_LIMIT_BYTES)

        def watch(runner: ModelRunner, prefix: str) -> None:
            called = {c.region for c in runner.model.program.calls if isinstance(c, UnitCall)}
            watched: dict[int, EngineWatch] = {}
            for row in rows:
                if row.program != prefix or not row.engine or row.index not in called:
                    continue
                used[row.engine] = None
                image = image_of(row, row.engine, read, runner.model)
                label = f"region {prefix}{row.index} on engine {row.engine}"
                watched[row.index] = EngineWatch(image, there, runner, label, bound, found)
            runner.watched = watched
            for k, body in enumerate(runner.bodies):
                watch(body, body_prefix(prefix, k))

        watch(runner, "")
    return tuple(sorted(used))


def _bytes(value: Array) -> memoryview:
    return value.reshape(-1).view(np.uint8).data if value.size else memoryview(bytearray())
