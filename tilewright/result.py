"""What a compile gave: figures, layers, report, files, and a bundle that can be run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypedDict, cast

from tilewright.options import Arrays, PathLike, arrays_file, settings_for
from worker.compiler.errors import InputError
from worker.report.parts import layer_parts
from worker.report.run import run_of_old

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from service.settings import Settings
    from tilewright.application import Application

_FILES = {
    "report": "report.json",
    "run": "run.json",
    "report_html": "report.html",
    "layers": "layers.csv",
    "trace": "trace.json.gz",
    "placement": "placement.json",
    "schedule": "schedule.json",
    "graph": "graph.json",
}


class Layer(TypedDict, total=False):
    """One kernel or host part, in the order of execution; also the columns of the `DataFrame`.

    Beside these, `bytes_LEVEL_read` and `bytes_LEVEL_write` for every memory level of the machine.
    None where a value does not apply, e.g. a host part's tile.
    """

    part: str
    """`whole`: a kernel of one group of nodes, or a host part; `nodes`: one group of a fused
    kernel; `kernel`: a fused kernel, before its groups, with the cycles that none of them has and
    all that is known of the kernel only."""
    index: int
    group_id: int | None
    """Equal for launches of the same kernel."""
    onnx_nodes: list[str]
    op_type: str
    placement: str
    """`accelerator` or `host`."""
    placement_reason: str
    cycles_total: int
    pct_cycles: float | None
    start_cycle: int
    end_cycle: int
    energy_pj: float
    energy_pct: float | None
    cycles_compute: int
    cycles_stall: int
    bound_by: str
    """What most of its cycles are spent on: `engine:NAME`, `fill:NAME` (of its pipeline),
    `port:LEVEL.read`, `port:LEVEL.write`, `link:NAME`, `latency`, `launch`, `host`, `host-link`."""
    causes: list[dict[str, Any]]
    """All of these with their `cycles`, the costliest first; they sum to `cycles_total`."""
    macs: int
    """Multiply-accumulates, on engines of any kind."""
    repeated_macs: int
    """Of them, those of points that are computed more than once (halo)."""
    utilization_pct: float | None
    """Of the compute engine's peak."""
    peak_buffer_bytes: int | None
    lower_bound_cycles: int
    """What every schedule of this kernel spends at least, launch included."""
    roofline_cycles: int
    """Work at peak rate or compulsory bytes, whichever takes longer."""
    predicted_cycles: int | None
    """By the strategy's own model, before the simulation."""
    signature: str | None
    """Digest of the kernel's graph without its names."""
    tile: str | None
    """Extents of the largest compute tile, in the order of the domain."""
    cores: int | None
    overhead_cycles: int


class Result:
    """A compiled model.

    Example:
        >>> import tilewright as tw
        >>> result = tw.load("out")
        >>> result.summary["latency_cycles"] == sum(row["cycles_total"] for row in result.rows)
        True
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        temporary: TemporaryDirectory[str] | None = None,
        bundle: Path | None = None,
    ) -> None:
        self.folder = folder
        """Where the files are; a temporary folder goes with the last reference to the result."""
        self._settings = settings
        self._temporary = temporary
        self._bundle = bundle

    @cached_property
    def report(self) -> dict[str, Any]:
        """The whole report, as `report.json` holds it.

        Raises:
            InputError: TW-CLI-001, the folder holds none.
        """
        try:
            found = json.loads((self.folder / _FILES["report"]).read_bytes())
        except (OSError, ValueError) as error:
            raise InputError("TW-CLI-001", f"{self.folder} holds no report: {error}") from error
        return cast("dict[str, Any]", found)

    @cached_property
    def _run(self) -> dict[str, Any]:
        path = self.folder / _FILES["run"]
        if not path.is_file():
            return run_of_old(self.report)
        return cast("dict[str, Any]", json.loads(path.read_bytes()))

    @property
    def cache(self) -> dict[str, Any]:
        """What was looked up: `hits` and `misses`, the outcome of every kernel by its signature
        (`units`), and `entries`."""
        return cast("dict[str, Any]", self._run.get("cache") or {})

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of each stage, by the clock on the wall."""
        return cast("dict[str, float]", self._run.get("timings") or {})

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the whole model: latency_cycles, latency_s, throughput_per_s, energy_pj
        (energy_low_pj and energy_high_pj with all guesses at either end), edp (pJ s),
        traffic_bytes and peak_bytes by memory level, utilization_pct and others."""
        return cast("dict[str, Any]", self.report["summary"])

    @property
    def strategies(self) -> list[dict[str, Any]]:
        """The whole programs that competed, with figures, which was `chosen`, and the `reason`;
        none in reports of 0.1.0, where nothing did."""
        return cast("list[dict[str, Any]]", self.report.get("strategies") or [])

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """What strategies say of their kernels, by strategy; each registers a shape of its own."""
        from worker.report.sections import stored_summaries

        return {stored.name: dict(stored.told) for stored in stored_summaries(self.report)}

    @property
    def verification(self) -> dict[str, Any]:
        """What the kernels' outputs were compared with; `passed` is None where they were not, and
        for a bundle alone, which is written before."""
        return cast("dict[str, Any]", self.report.get("verification", {"passed": None}))

    @property
    def rows(self) -> list[Layer]:
        """The table of layers row by row, fused kernels taken apart; every row has every column."""
        total = self.summary["latency_cycles"]
        return [cast("Layer", row) for row in layer_parts(self.report["layers"], total)]

    @property
    def layers(self) -> pd.DataFrame | list[Layer]:
        """The table of layers: a DataFrame where pandas is installed, else its `rows`."""
        try:
            import pandas as pd
        except ImportError:
            return self.rows
        return pd.DataFrame(self.rows)

    @property
    def bundle(self) -> Path:
        """The bundle: kernels, weights, host parts and schedules in one file.

        Raises:
            InputError: TW-CLI-001, the folder holds none.
        """
        if self._bundle is not None:
            return self._bundle
        found = sorted(self.folder.glob("*.twb"))
        if not found:
            raise InputError("TW-CLI-001", f"{self.folder} holds no bundle (*.twb)")
        return found[0]

    @property
    def files(self) -> dict[str, Path]:
        """Every file of the result by name: report, report_html, run, layers, trace, placement,
        schedule, graph, bundle."""
        paths = {name: self.folder / file for name, file in _FILES.items()}
        there = {name: path for name, path in paths.items() if path.is_file()}
        return {**there, "bundle": self.bundle}

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run the compiled kernels and the host parts; gives the model's outputs by name.

        Example:
            >>> import numpy as np, tilewright as tw
            >>> tw.load("out").run({"x": np.zeros((1, 3, 12, 12), np.float32)})["y"].shape
            (1, 10)

        Shapes: inputs and outputs have the model's, with `symbols` bound.

        Raises:
            InputError: TW-RUN-002, the names, shapes or types are not those of the model.
            CompilerError: TW-RUN-006, the run ended without a result; others by their code.

        Cost: a child process in the sandbox and a C compiler's run over the kernels, seconds.
        """
        from service.orders.running import BundleRun, run_bundle

        with TemporaryDirectory(prefix="tilewright-inputs-") as folder:
            path = arrays_file(inputs, Path(folder) / "inputs.npz")
            return run_bundle(BundleRun(self.bundle, path), self._settings).outputs

    def build(self, folder: PathLike, *, sources: bool = False) -> Application:
        """Build the bundle's library for an application, as `tilewright build` does.

        `sources` leaves the C sources in `src/` instead.

        Raises:
            InputError: TW-LIB-010, there is no library of this bundle; others by their code.
            CompilerError: TW-RUN-006, the build ended without a library.

        Cost: a child process in the sandbox and a C compiler's run over the kernels, seconds.
        """
        from service.orders.building import BundleBuild, build_bundle
        from tilewright.application import Application

        target = Path(folder)
        made = build_bundle(BundleBuild(self.bundle, target, sources), self._settings)
        return Application(target, made.digest)

    def save(self, folder: PathLike) -> Result:
        """Copy the files into a folder that stays; gives the result there."""
        target = Path(folder)
        shutil.copytree(self.folder, target, dirs_exist_ok=True)
        if self._bundle is not None:
            shutil.copy2(self._bundle, target)
        return Result(target, self._settings)

    def __repr__(self) -> str:
        model, machine = self.report["model"]["name"], self.report["hardware"]["name"]
        cycles, passed = self.summary["latency_cycles"], self.verification["passed"]
        checked = {True: "verified", False: "WRONG", None: "not verified"}[passed]
        return f"<Result: {model} on {machine}, {cycles} cycles, {checked}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures, who competed, the layers that take longest."""
        from tilewright.html import result_page

        return result_page(self.report)


def load(path: PathLike, *, data_dir: PathLike | None = None) -> Result:
    """Open the folder that an earlier compile wrote (`output=`, or `tilewright compile -o`), or a
    bundle alone (`*.twb`).

    A bundle alone has figures, schedule and trace; it has no verification, page or table of layers
    as a file, since these are written after it.

    Example:
        >>> import tilewright as tw
        >>> bundle = tw.load("out").bundle
        >>> tw.load(bundle).summary == tw.load("out").summary
        True

    Raises:
        InputError: TW-CLI-001, it holds no report; TW-RUN-001 or -004, the bundle cannot be read.
    """
    place, settings = Path(path), settings_for(data_dir)
    if place.is_file():
        temporary = _documents_of(place)
        result = Result(Path(temporary.name), settings, temporary, place.resolve())
    else:
        result = Result(place, settings)
    if not isinstance(result.report, Mapping):
        raise InputError("TW-CLI-001", f"{path} holds no report")
    return result


def _documents_of(bundle: Path) -> TemporaryDirectory[str]:
    """A folder with the files that a bundle holds of its result."""
    from worker.compiler.package.archive import open_archive, read_member
    from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, read_manifest

    folder = TemporaryDirectory(prefix="tilewright-bundle-")
    with open_archive(bundle) as archive:
        read_manifest(archive)
        for name in ("report", "schedule", "trace"):
            data = read_member(archive, _FILES[name], DOCUMENT_LIMIT_BYTES)
            (Path(folder.name) / _FILES[name]).write_bytes(data)
    return folder
