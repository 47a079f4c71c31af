"""What a compile is given from outside the pure compiler: cache, progress, samples, simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from worker.compiler.cache import Cache, CacheKey
from worker.compiler.errors import ModelError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.judge.compiled import CompiledModel, Ports, Progress
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.units import Unit
from worker.compiler.machine import digest
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.quantize.calibration import load_calibration
from worker.compiler.quantize.holding import split_samples
from worker.job.simulation import simulate_cached, simulate_model
from worker.simulator.run import SIMULATOR_VERSION
from worker.verification.budget import over_budget
from worker.verification.inputs import SYNTHETIC_BATCHES, held_out, seeded_inputs
from worker.verification.scoring import Scoring


def open_ports(
    machine: Machine,
    options: CompileOptions,
    cache: Cache,
    progress: Progress,
    calibration: Path | None = None,
    model_bytes: int = 0,
    *,
    is_helping: bool = False,
) -> Ports:
    """Ports of one compile: calibration from `calibration` (.npz), else seeded random inputs.

    Of the samples of a file those that `scoring_samples` gives are kept out.  `is_helping`: another
    compile of this model is under way, and this one fills its cache from the other end.

    `model_bytes`: of the model's file, by which running it is affordable.
    """

    def samples(model: OnnxModel) -> Sequence[Mapping[str, npt.NDArray[Any]]]:
        if calibration is None:
            return synthetic_samples(model, options.seed, model_bytes)
        require_affordable(model, model_bytes)
        return split_samples(load_calibration(calibration, model))[0]

    remembered, machine_digest = _Remembering(cache), digest(machine)
    known: dict[str, Figures] = {}

    def figures(unit: Unit) -> Figures:
        """Asked again and again for the same few units; a schedule and a machine decide them."""
        if unit.schedule_text not in known:
            sim = simulate_cached(unit, machine, remembered, machine_digest)
            home = sim.traffic[0].read_bytes + sim.traffic[0].write_bytes
            known[unit.schedule_text] = Figures(sim.cycles, sim.energy_pj, home)
        return known[unit.schedule_text]

    def whole(compiled: CompiledModel) -> Figures:
        _, sim = simulate_model(compiled, remembered, options.loop_trips)
        home = sim.traffic[0].read_bytes + sim.traffic[0].write_bytes
        peak = dict(sim.peak_bytes)[machine.home.name]
        return Figures(sim.cycles, sim.energy_pj, home, peak)

    return Ports(cache, progress, samples, figures, whole, SIMULATOR_VERSION, is_helping)


def scoring_samples(model: OnnxModel, options: CompileOptions, calibration: Path | None) -> Scoring:
    """What the noise of a conversion is measured on: inputs of the kind that calibrated, which
    calibration has not seen.

    Raises: as `load_calibration`.
    """
    if calibration is None:
        return Scoring((held_out(model, options.seed),), "random inputs, calibrated with others")
    calibrating, held = split_samples(load_calibration(calibration, model))
    if not held:
        said = "the sample that calibrated: one sample leaves none to hold out"
        return Scoring(calibrating, said, is_seen=True)
    said = f"{len(held)} samples held out from calibration, calibrated with {len(calibrating)}"
    return Scoring(held, said)


def synthetic_samples(
    model: OnnxModel, seed: int, model_bytes: int
) -> Sequence[Mapping[str, npt.NDArray[Any]]]:
    """Batches of random inputs in place of calibration data.

    Raises: as `require_affordable`.
    """
    require_affordable(model, model_bytes)
    return tuple(seeded_inputs(model, seed + k) for k in range(SYNTHETIC_BATCHES))


def require_affordable(model: OnnxModel, model_bytes: int) -> None:
    """Observing ranges runs the model: that has the budget of verifying it.

    Raises:
        ModelError: TW-CAL-005, with what it would take and the limit.
    """
    why = over_budget(model, model_bytes)
    if why is not None:
        raise ModelError("TW-CAL-005", f"ranges cannot be observed: {why}")


class _Remembering:
    """A cache whose simulations are kept at hand for one compile, also where it is none."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known: dict[str, bytes] = {}

    def get(self, key: CacheKey) -> bytes | None:
        if key.digest not in self._known:
            stored = self._cache.get(key)
            if stored is None:
                return None
            self._known[key.digest] = stored
        return self._known[key.digest]

    def put(self, key: CacheKey, value: bytes) -> None:
        self._known[key.digest] = value
        self._cache.put(key, value)
