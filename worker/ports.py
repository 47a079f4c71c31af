"""What a compile is given from outside the pure compiler: cache, progress, samples, simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from worker.compiler.cache import Cache
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.judge.compiled import Ports
from worker.compiler.judge.solve import Progress
from worker.compiler.judge.units import Unit
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.quantize.calibration import load_calibration
from worker.simulation import simulate_cached
from worker.verification.inputs import SYNTHETIC_BATCHES, seeded_inputs


def open_ports(
    machine: Machine,
    options: CompileOptions,
    cache: Cache,
    progress: Progress,
    calibration: Path | None = None,
) -> Ports:
    """Ports of one compile: calibration from `calibration` (.npz), else seeded random inputs."""

    def samples(model: OnnxModel) -> Sequence[Mapping[str, npt.NDArray[Any]]]:
        if calibration is not None:
            return load_calibration(calibration, model)
        return tuple(seeded_inputs(model, options.seed + k) for k in range(SYNTHETIC_BATCHES))

    known: dict[str, int] = {}

    def unit_cycles(unit: Unit) -> int:
        """Asked again and again for the same few units; a schedule and a machine decide it."""
        if unit.schedule_text not in known:
            known[unit.schedule_text] = simulate_cached(unit, machine, cache).cycles
        return known[unit.schedule_text]

    return Ports(cache, progress, samples, unit_cycles)
