"""The options of a compile as keyword arguments, and the order that they and a model make."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

from service.orders.order import (
    Order,
    arrays_digest,
    existing_model,
    hardware_document,
    variant_settings,
)
from tilewright.machine import Machine
from worker.compiler.descriptors import AUTO
from worker.compiler.errors import ModelError, OptionError

if TYPE_CHECKING:
    import onnx
    from numpy.typing import ArrayLike

    from service.settings import Settings

PathLike: TypeAlias = "str | os.PathLike[str]"
Model: TypeAlias = "PathLike | bytes | onnx.ModelProto"
Hardware: TypeAlias = "PathLike | Mapping[str, Any] | Machine"
Arrays: TypeAlias = "PathLike | Mapping[str, ArrayLike]"
"""An .npz file, or an array for each of the model's inputs by name."""


class Options(TypedDict, total=False):
    """Keyword arguments of `compile`: what decides the result, each with its default."""

    strategy: str
    """`auto` (the best of all that are installed), or one by name, as `tilewright strategies` lists
    them."""
    strategy_options: Mapping[str, Mapping[str, object]]
    """Options of strategies' own by strategy, e.g. {"chains": {"longest": 4}}; none."""
    variant: str
    """Short for the option `variant` of `strategy`."""
    objective: Literal["latency", "energy", "edp", "offchip", "peak_memory"]
    """What the simulated winner is best in; `latency`."""
    effort: Literal["fast", "normal", "thorough"]
    """How many candidates are simulated, never for how long; `normal`."""
    max_power_w: float | None
    """Mean power of a run, in W, that the program may take at most; None, no cap."""
    max_latency_ms: float | None
    """Time of a run, in ms, that the program may take at most; None, no cap."""
    without: Sequence[str]
    """Heuristics that are turned off, to see what they earn; none."""
    precision: Literal["native", "f16", "bf16", "i8", "u8"]
    """Number format of the accelerator's regions; `native`, the model's own."""
    partition: Literal["spec", "greedy", "criteria", "auto"]
    """How regions are chosen; `spec`, as the hardware says."""
    symbols: Mapping[str, int]
    """Values of symbolic dimensions, e.g. {"batch": 8}; none."""
    loop_trips: int
    """Trips assumed in the simulation for loops of unknown count; 1."""
    calibration: Arrays
    """Sample inputs for quantisation, samples stacked first; synthetic ones where needed."""
    quantization: Mapping[str, object]
    """How floats become integers: `ranges` (minmax, percentile, entropy, mse, auto), `percentile`,
    `corrections` (bias, rounding), `keep_float` (names of nodes), `min_sqnr` (dB); minmax alone."""
    verify: Literal["none", "sample", "full"]
    """Which kernels are run and compared with ONNX Runtime; `sample`."""
    inputs: Arrays
    """Inputs of the verification; seeded ones."""
    link: PathLike
    """A vendor's kernel library, whose functions run what instructions name as `call`; none."""
    seed: int
    """Of the inputs of the verification and of synthetic calibration; 0."""
    fail_on_fallback: bool
    """Refuse where an operator goes to the host; False."""
    require_cache: bool
    """Refuse where something must be solved anew; False."""
    no_cache: bool
    """Solve everything anew, and keep nothing; False."""


def order_of(
    model: Model,
    hardware: Hardware,
    options: Mapping[str, object],
    output: Path,
    folder: Path,
    label: str | None = None,
) -> Order:
    """The order; what was given as a value rather than a file is written into `folder`.

    Raises:
        OptionError: TW-OPT-001 with a finding for every option that does not exist, or whose value
            is not allowed.
        InputError: TW-CLI-001, there is no such file.
        ModelError: TW-MODEL-003, a `ModelProto` of 2 GiB or more.
        SpecError: the hardware's file cannot be read.
    """
    from worker.compiler.options import CompileOptions

    document = dict(options)
    strategy = document.get("strategy", AUTO)
    variant = document.pop("variant", None)
    if variant is not None:
        own = document.get("strategy_options", {})
        document["strategy_options"] = _with_variant(own, str(strategy), str(variant))
    files: dict[str, Path | None] = {"calibration": None, "inputs": None}
    for name in files:
        given = document.get(name)
        if given is not None:
            path = _arrays_file(given, folder / f"{name}.npz", name)
            document[name], files[name] = arrays_digest(path, f"file of {name}"), path
    link = document.get("link")
    library = None if link is None else Path(cast("PathLike", link))
    if library is not None:
        document["link"] = arrays_digest(library, "kernel library")
    return Order(
        model=model_file(model, folder),
        hardware=hardware_of(hardware),
        options=CompileOptions.from_json(document).to_json(),
        output=output,
        label=label,
        calibration=files["calibration"],
        inputs=files["inputs"],
        link=library,
    )


def _with_variant(own: object, strategy: str, variant: str) -> object:
    """`own` options with the one that `variant` is short for; not a mapping: left to the parser."""
    short = variant_settings(strategy, variant)
    if not isinstance(own, Mapping):
        return own
    return {**own, **{name: {**own.get(name, {}), **said} for name, said in short.items()}}


def model_file(model: Model, folder: Path) -> Path:
    """The model as a file: an .onnx or .zip that is there, or one that is written into `folder`.

    Raises:
        InputError: TW-CLI-001, there is no such file.
        ModelError: TW-MODEL-003, a `ModelProto` of 2 GiB or more.
    """
    if isinstance(model, str | os.PathLike):
        return existing_model(Path(model))
    if isinstance(model, bytes):
        data, name = model, "model"
    else:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", model.graph.name).strip(".")[:80] or "model"
        try:
            data = model.SerializeToString()
        except Exception as error:  # protobuf's own types differ between its releases
            raise ModelError(
                "TW-MODEL-003",
                f"the ModelProto cannot be written as one message: {error}",
                remedy="Save it with external data (onnx.save_model(..., save_as_external_data="
                "True)) and give the path.",
            ) from error
    path = folder / f"{name}.onnx"
    path.write_bytes(data)
    return path


def hardware_of(hardware: Hardware) -> dict[str, Any]:
    """The document of a preset's name, a spec file, a document or a `Machine`."""
    if isinstance(hardware, Machine):
        return hardware.document
    if isinstance(hardware, Mapping):
        return dict(hardware)
    return hardware_document(os.fspath(hardware))


def arrays_file(arrays: Arrays, target: Path) -> Path:
    """`arrays` as an .npz file: the one it names, or `target`, written from values."""
    from worker.job.arrays import write_npz

    if isinstance(arrays, str | os.PathLike):
        return Path(arrays)
    write_npz(target, arrays)  # type: ignore[arg-type]  # it makes arrays of them
    return target


def _arrays_file(given: object, target: Path, name: str) -> Path:
    if isinstance(given, str | os.PathLike | Mapping):
        return arrays_file(given, target)
    raise OptionError(
        "TW-OPT-001",
        f"{name} must be an .npz file, or a mapping of names to arrays",
        pointer=f"/options/{name}",
        actual=type(given).__name__,
    )


def settings_for(data_dir: PathLike | None) -> Settings:
    """The settings of this process, on another data directory where one is given."""
    from service.settings import Settings

    return Settings() if data_dir is None else Settings(data_dir=Path(data_dir))
