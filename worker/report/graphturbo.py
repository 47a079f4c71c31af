"""The `graphturbo` section of the report: how layers became groups, instances, orders and scopes.

Everything is read from the strategy's summaries; totals count a unit as often as the model runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker.compiler.errors import Detail
from worker.compiler.judge.entrants import own_options
from worker.compiler.options import CompileOptions
from worker.compiler.strategies.graphturbo.descriptor import DESCRIPTOR, GraphTurboOptions, Variant
from worker.compiler.strategies.graphturbo.summary import (
    BufferScope,
    GroupSummary,
    MovementSummary,
    OrderName,
    OrderSummary,
    SpillSummary,
    UnitSummary,
)


def variant_of(options: CompileOptions) -> Variant:
    """The variant that GraphTurbo was asked for."""
    own = own_options(DESCRIPTOR.name, options)
    assert isinstance(own, GraphTurboOptions)
    return own.variant


def graphturbo_section(units: Sequence[UnitSummary], variant: Variant) -> dict[str, Detail] | None:
    """Give totals and one entry per unit, in the units' order; None when no unit is GraphTurbo's.

    Units: bytes and cycles as the names say; percentages of 100.  Null: not simulated, no bound
    known, or a group that no factor makes fit.
    """
    if not units:
        return None
    return {
        "variant": str(variant),
        "total": _total(units),
        "units": [_unit(unit) for unit in units],
    }


def _total(units: Sequence[UnitSummary]) -> dict[str, Detail]:
    def summed(number: Callable[[UnitSummary], int]) -> int:
        return sum(number(unit) * unit.calls for unit in units)

    simulated = [unit.simulated_cycles for unit in units]
    predicted = summed(lambda unit: unit.predicted_cycles)
    cycles = None if None in simulated else summed(lambda unit: unit.simulated_cycles or 0)
    tensors = {
        scope: sum(_placed(unit, scope) * unit.calls for unit in units) for scope in BufferScope
    }
    chosen = [order.name for unit in units for order in unit.orders if order.chosen]
    return {
        "units": len(units),
        "calls": summed(lambda unit: 1),
        "layers": summed(lambda unit: unit.layers),
        "operators": summed(lambda unit: unit.operators),
        "groups": summed(lambda unit: len(unit.groups)),
        "instances": summed(lambda unit: unit.num_instances),
        "tensors_by_scope": {str(scope): count for scope, count in tensors.items()},
        "lb_tensors_pct": _pct(tensors[BufferScope.LB], sum(tensors.values())),
        "spills": summed(lambda unit: len(unit.spills)),
        "spilled_bytes": summed(lambda unit: sum(spill.size_bytes for spill in unit.spills)),
        "movements": summed(lambda unit: sum(move.count for move in unit.movements)),
        "movement_bytes": summed(lambda unit: sum(move.size_bytes for move in unit.movements)),
        "units_by_order": {str(name): chosen.count(name) for name in OrderName},
        "predicted_cycles": predicted,
        "simulated_cycles": cycles,
        "prediction_error_pct": None if cycles is None else _pct(predicted - cycles, cycles),
    }


def _placed(unit: UnitSummary, scope: BufferScope) -> int:
    return sum(count.tensors for count in unit.scopes if count.scope is scope)


def _pct(part: int, whole: int) -> float | None:
    return round(100.0 * part / whole, 4) if whole else None


def _unit(unit: UnitSummary) -> dict[str, Detail]:
    return {
        "unit": unit.unit,
        "label": unit.label,
        "calls": unit.calls,
        "layers": unit.layers,
        "operators": unit.operators,
        "instances": unit.num_instances,
        "samples_per_cluster": unit.samples_per_cluster,
        "iterations": unit.iterations,
        "is_ahead": unit.is_ahead,
        "groups": [_group(group) for group in unit.groups],
        "orders": [_order(order) for order in unit.orders],
        "tensors_by_scope": {str(scope): _placed(unit, scope) for scope in BufferScope},
        "spills": [_spill(spill) for spill in unit.spills],
        "movements": [_movement(move) for move in unit.movements],
        "predicted_cycles": unit.predicted_cycles,
        "simulated_cycles": unit.simulated_cycles,
        "sections": [
            {"name": each.name, "predicted_cycles": each.predicted_cycles} for each in unit.sections
        ],
    }


def _group(group: GroupSummary) -> dict[str, Detail]:
    return {
        "layers": list[Detail](group.layers),
        "factor": group.factor,
        "peak_bytes": group.peak_bytes,
    }


def _order(order: OrderSummary) -> dict[str, Detail]:
    return {
        "name": str(order.name),
        "peak_bytes": order.peak_bytes,
        "spilled_bytes": order.spilled_bytes,
        "chosen": order.chosen,
    }


def _spill(spill: SpillSummary) -> dict[str, Detail]:
    return {
        "tensor": spill.tensor,
        "bytes": spill.size_bytes,
        "scope": str(spill.scope),
        "rule": spill.rule,
    }


def _movement(move: MovementSummary) -> dict[str, Detail]:
    return {"kind": move.kind, "count": move.count, "bytes": move.size_bytes}
