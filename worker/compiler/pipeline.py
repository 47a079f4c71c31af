"""The compiler's stages in order: bytes -> model -> parts -> graphs -> units -> program.

    ingest -> simplify -> convert -> partition -> schedule -> codegen         (`stages.COMPILER`)

`compile_model` runs them all.  It is pure (no clock, environment, network, database): the cache,
the progress sink, calibration samples and simulated times come in through `Ports`.  Simulation of
the whole, packaging, verification and reporting follow in the job, on the `CompiledModel`.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import file_digest
from pathlib import Path

from worker.compiler.collector import rare_collections
from worker.compiler.control.shapes import settle_shapes
from worker.compiler.faults import Fault
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import Ingested, interface_of, require_interface
from worker.compiler.frontend.simplify import simplify
from worker.compiler.frontend.sizes import require_sizes
from worker.compiler.judge.compiled import Compile, CompiledModel, Ports, Samples
from worker.compiler.judge.entrants import entrants
from worker.compiler.judge.pool import UnitPool
from worker.compiler.judge.programs import Scheduled, code, mode_of, rules_of, schedule
from worker.compiler.machine.machine import Machine, PartitionMode
from worker.compiler.options import CompileOptions
from worker.compiler.partition.annotate import annotate
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import Partitioning, RegionRule
from worker.compiler.quantization import DEFAULT
from worker.compiler.quantize.boundary import Converted
from worker.compiler.quantize.choose import choose_conversions
from worker.compiler.quantize.measured import convert_as_asked
from worker.compiler.quantize.split import split_dequantisations
from worker.compiler.stages import COMPILER, run_stages

_MOST_NAMED = 8
"""Nodes that a warning names."""


@rare_collections()
def compile_model(
    path: Path,
    name: str,
    machine: Machine,
    options: CompileOptions,
    ports: Ports,
    limits: Limits,
) -> CompiledModel:
    """Compile one ONNX file for one machine.

    Raises:
        CompilerError: see the stages; Infeasible only when an operator fits neither the
            accelerator nor (being refused by --fail-on-fallback) the host.
    """
    asked = Compile(path, name, machine, options, ports, limits, path)
    compiled: CompiledModel = run_stages(COMPILER, asked, ports.progress)["codegen"]
    return compiled


def ingest(asked: Compile) -> Ingested:
    """Read the file.

    Raises: as `load_model`.
    """
    loaded = load_model(asked.path, asked.limits, asked.name, asked.machine.foreign_names)
    if asked.path != asked.user_file:
        with asked.user_file.open("rb") as file:
            loaded = replace(loaded, sha256=file_digest(file, "sha256").hexdigest())
    return Ingested(loaded, interface_of(loaded.ir))


def simplified(asked: Compile, ingested: Ingested) -> OnnxModel:
    """Bind symbols, infer shapes, fold what is constant; refuse what is too large.

    Raises:
        ModelError: symbols, shapes or sizes.
        PassContractError: TW-INT-003, an input or output was lost.
    """
    model = simplify(bind(ingested.model, dict(asked.options.symbols)))
    settle_shapes(model)
    require_sizes(model, asked.limits)
    require_interface("simplify", ingested.interface, model.ir)
    return model


def converted(asked: Compile, model: OnnxModel) -> Converted:
    """See `convert_for`."""
    return convert_for(model, asked.machine, asked.options, asked.ports.samples)


def convert_for(
    model: OnnxModel, machine: Machine, options: CompileOptions, samples: Samples
) -> Converted:
    """Put what targets will take into their number formats.

    Raises:
        OptionError: TW-OPT-003, no target has the precision asked for.
        ModelError: TW-CAL codes, the calibration samples do not fit.
    """
    model = split_dequantisations(model)
    choices = choose_conversions(model, machine, options.precision)
    if not choices and options.quantization == DEFAULT:
        return Converted(model)
    annotation = annotate(model, machine, {}, choices)
    found = convert_as_asked(
        model, annotation.placement, choices, lambda: samples(model), options.quantization
    )
    mode = mode_of(options)
    if RegionRule.GREEDY in rules_of(machine, options):
        mode = PartitionMode.GREEDY  # it stands for election, in the new format
    if found.boundaries and not partition(found.model, machine, {}, mode).regions:
        # Nothing would run in the new format: the user would pay its noise for nothing.
        unused = (
            "CONVERSION_UNUSED",
            f"no region of {machine.name} would be left after quantisation, so the model stays as"
            " it is and runs on the host",
        )
        return Converted(model, warnings=(unused,))
    return replace(found, conversions=choices)


def partitioned(asked: Compile, found: Converted) -> Partitioning:
    """Give every node to a target or to the host; what fits no memory is found out later."""
    return partition(found.model, asked.machine, {}, mode_of(asked.options))


def scheduled(
    asked: Compile, source: OnnxModel, found: Converted, parts: Partitioning
) -> Scheduled:
    """Schedule and lower every strategy's kernels, and elect a program.

    Raises: as `judge.programs.schedule`.
    """
    options, ports = asked.options, asked.ports
    field, last_resort = entrants(options)
    pool = UnitPool(
        asked.machine, options, ports.cache, field, last_resort, ports.figures, ports.simulator
    )
    return schedule(source, found, parts, options, pool, ports, ports.progress)


def coded(asked: Compile, ingested: Ingested, program: Scheduled) -> CompiledModel:
    """Audit and code the kernels of the program."""
    compiled = code(program)
    return replace(
        compiled,
        interface=ingested.interface,
        warnings=(
            *compiled.warnings, *_calibration(compiled, asked.options),
            *_fallbacks(program.maker.pool),
        ),
    )  # fmt: skip


def _calibration(found: CompiledModel, options: CompileOptions) -> tuple[tuple[str, str], ...]:
    """A warning where ranges come from made-up inputs."""
    if options.calibration or not any(b.scale is not None for b in found.boundaries):
        return ()
    return (
        (
            "SYNTHETIC_CALIBRATION",
            "quantisation ranges come from random inputs: latencies are meaningful, accuracy is"
            " not; give sample inputs with --calibration FILE.npz",
        ),
    )


def _fallbacks(pool: UnitPool) -> tuple[tuple[str, str], ...]:
    """A warning for every fault of a strategy, with the nodes that another way was taken for."""
    nodes_of: dict[Fault, dict[str, None]] = {}
    for fallback in pool.fallbacks:
        nodes_of.setdefault(fallback.fault, {}).update(dict.fromkeys(fallback.nodes))
    package = {e.name: e.descriptor.distribution for e in (*pool.entrants, pool.last_resort)}
    return tuple(
        (
            "STRATEGY_FALLBACK",
            f"{len(nodes)} nodes ({', '.join(list(nodes)[:_MOST_NAMED])}"
            f"{', ...' if len(nodes) > _MOST_NAMED else ''}) run another way:"
            f" {fault.sentence}; this is a bug in"
            f" {package.get(fault.strategy, 'Tilewright')}: please report it",
        )
        for fault, nodes in nodes_of.items()
    )
