"""Which unsupported operator, if the accelerator took it, would save most?

Asked of the user's model before conversion: a target that converts is asked as if the numbers were
converted already, with its engines' rates standing in for the types it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.compiler.errors import Detail
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.intrinsic import Intrinsic
from worker.compiler.machine.machine import Conversion, Engine, Machine, PartitionMode
from worker.compiler.options import CompileOptions, PartitionChoice
from worker.compiler.partition.annotate import annotate
from worker.compiler.partition.estimate import estimated_seconds
from worker.compiler.partition.partition import partition_annotated
from worker.compiler.partition.plan import Partitioning
from worker.compiler.partition.unlock import Unlock, allowing, unlock_list
from worker.compiler.quantize.choose import choose_conversions
from worker.compiler.quantize.split import split_dequantisations

SHOWN_NODES = 20


def unlock_rows(model: OnnxModel, machine: Machine, options: CompileOptions) -> list[Detail]:
    """Ranked rows for `model`, simplified and not yet converted.

    Cost: one partitioning and one estimate per op type and kind of refusal on the host.
    """
    split = split_dequantisations(model)
    choices = choose_conversions(split, machine, options.precision)
    mode = None
    if options.partition is not PartitionChoice.SPEC:
        mode = PartitionMode(str(options.partition))

    def planned(on: Machine) -> Partitioning:
        found = annotate(split, on, {}, choices)
        return partition_annotated(split, on, found.placement, found.composites, mode)

    present = planned(machine)
    if all(not part.is_host for part in present.parts):
        return []
    estimating = _standing_in(machine, choices)
    before_s = estimated_seconds(split, estimating, present)
    rows = unlock_list(
        split,
        machine,
        present,
        lambda lifts: planned(allowing(machine, lifts)),
        lambda parts: before_s - estimated_seconds(split, estimating, parts),
    )
    return [_row(unlock) for unlock in rows]


def _standing_in(machine: Machine, choices: Mapping[str, Conversion]) -> Machine:
    """The machine with rates for the types that its targets replace: those of the new types."""
    engines = machine.engines
    for name, conversion in choices.items():
        own = machine.target(name).engines
        engines = tuple(
            _with_rates(e, conversion) if not own or e.name in own else e for e in engines
        )
    return replace(machine, engines=engines)


def _with_rates(engine: Engine, conversion: Conversion) -> Engine:
    rate = engine.macs_per_cycle.get(conversion.dtype)
    if rate is None:
        return engine
    rates = dict(engine.macs_per_cycle)
    for source in conversion.sources:
        rates.setdefault(source, rate)
    intrinsics = tuple(_with_answers(i, conversion) for i in engine.intrinsics)
    return replace(engine, macs_per_cycle=rates, intrinsics=intrinsics)


def _with_answers(intrinsic: Intrinsic, conversion: Conversion) -> Intrinsic:
    """What an oracle has said of the new type stands for the others, too."""
    more = tuple(
        replace(size, answers=replace(size.answers, dtype=source))
        for size in intrinsic.sizes
        if size.answers is not None and size.answers.dtype is conversion.dtype
        for source in conversion.sources
    )
    return replace(intrinsic, sizes=(*intrinsic.sizes, *more)) if more else intrinsic


def _row(unlock: Unlock) -> Detail:
    return {
        "op_type": unlock.op_type,
        "kind": str(unlock.kind),
        "num_nodes": len(unlock.nodes),
        "nodes": list[Detail](unlock.nodes[:SHOWN_NODES]),
        "saves_s": unlock.saves_s,
        "regions_before": unlock.regions_before,
        "regions_after": unlock.regions_after,
        "boundary_bytes_before": unlock.boundary_bytes_before,
        "boundary_bytes_after": unlock.boundary_bytes_after,
        "macs": unlock.macs,
        "sentence": unlock.sentence,
    }
