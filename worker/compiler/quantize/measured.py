"""Choices that are measured on samples: ranges, equalisation, and which operators stay float.

A choice is converted in full, run by ONNX Runtime, and its outputs are compared with the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy.typing as npt
import onnx_ir

from worker.compiler.errors import Detail, OptionError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.partition.plan import HOST, Placement
from worker.compiler.quantization import DEFAULT, POINTER, Correction, Quantization, Ranges
from worker.compiler.quantize.boundary import Converted, Sensitivity
from worker.compiler.quantize.convert import convert
from worker.compiler.quantize.equalise import equalised
from worker.compiler.quantize.ranges import Observed, observe
from worker.compiler.quantize.session import Session
from worker.compiler.quantize.sqnr import Powers

Batch = Mapping[str, npt.NDArray[Any]]
Way = Callable[[Quantization, Sequence[Placement], Sequence[Batch]], Converted]

_FEW = 4
"""Batches that the sensitivity of single operators is measured on."""
_FOLDS = 4
_KNOWN_EXACT = 400.0
"""Decibels of an output without noise, among others that have some."""


def convert_as_asked(
    model: OnnxModel,
    placement: Sequence[Placement],
    choices: Mapping[str, Conversion],
    samples: Callable[[], Sequence[Batch]],
    chosen: Quantization,
) -> Converted:
    """`convert`, with what `chosen` leaves to measurements decided by them.

    Raises:
        OptionError: TW-OPT-001, `keep_float` names a node that is not there, or there is nothing
            to quantise to integers that the options could be about.
        ModelError: as `convert`, and as `observe`.

    Cost: `ranges: auto` and `corrections: equalise` convert once for each fold, way of taking
        ranges, and with and without equalisation; each sample is run for each way.  `min_sqnr`,
        where it is not kept anyway, converts once for each converted operator.
    """
    placement = _without(placement, chosen.keep_float)
    if chosen != DEFAULT and not any(c.dtype in (DType.I8, DType.U8) for c in choices.values()):
        raise OptionError(
            "TW-OPT-001", "nothing is quantised to integers, so that quantization changes nothing",
            pointer=POINTER, limit="with precision i8 or u8, or a target of integers",
            actual=", ".join(sorted({str(c.dtype) for c in choices.values()})) or "native",
        )  # fmt: skip
    batches: list[Sequence[Batch]] = []

    def given() -> Sequence[Batch]:
        if not batches:
            batches.append(samples())
        return batches[0]

    known: dict[tuple[int, ...], dict[str, Observed]] = {}

    def converted(
        source: OnnxModel, how: Quantization, places: Sequence[Placement], part: Sequence[Batch],
        seen: dict[str, Observed],
    ) -> Converted:  # fmt: skip
        def calibration(names: Sequence[str]) -> Mapping[str, Observed]:
            new = [name for name in names if name not in seen]
            if new:
                seen.update(observe(source, new, part))
            return {name: seen[name] for name in names}

        return convert(source, places, choices, calibration, how, lambda: part)

    def convert_one(
        how: Quantization, places: Sequence[Placement], part: Sequence[Batch]
    ) -> Converted:
        seen = known.setdefault(tuple(id(batch) for batch in part), {})
        if Correction.EQUALISE not in how.corrections:
            return converted(model, how, places, part, seen)
        plain = msgspec.structs.replace(how, corrections=())
        nodes = converted(model, plain, places, part, seen).converted_nodes
        per_channel = all(c.per_channel for c in choices.values())
        source, done = equalised(model, frozenset(nodes), part, per_channel=per_channel)
        found = converted(source, _unequalised(how), places, part, {} if done else seen)
        return replace(found, quantised=replace(found.quantised, equalised=done))

    if chosen.ranges is Ranges.AUTO or Correction.EQUALISE in chosen.corrections:
        chosen = _best(model, partial(_placed, convert_one, placement), chosen, given())
    if chosen == DEFAULT and not batches:
        return convert(
            model, placement, choices, lambda names: observe(model, names, given()), chosen, given
        )
    found = convert_one(chosen, placement, given())
    if chosen.min_sqnr is not None:
        found = _within(model, convert_one, placement, chosen, given(), found)
    return found


def _placed(
    way: Way, placement: Sequence[Placement], how: Quantization, part: Sequence[Batch]
) -> Converted:
    return way(how, placement, part)


def _without(placement: Sequence[Placement], names: Sequence[str]) -> tuple[Placement, ...]:
    """The placement with the nodes `names` on the host."""
    known = {row.node for row in placement}
    for name in names:
        if name not in known:
            raise OptionError(
                "TW-OPT-001", f"keep_float names {name!r}, which is no node of the model",
                pointer=f"{POINTER}/keep_float", limit=list[Detail](sorted(known)[:20]),
                actual=name,
            )  # fmt: skip
    kept = frozenset(names)
    return tuple(replace(row, target=HOST) if row.node in kept else row for row in placement)


def _unequalised(chosen: Quantization) -> Quantization:
    rest = tuple(c for c in chosen.corrections if c is not Correction.EQUALISE)
    return msgspec.structs.replace(chosen, corrections=rest)


def _best(
    model: OnnxModel,
    way: Callable[[Quantization, Sequence[Batch]], Converted],
    chosen: Quantization,
    batches: Sequence[Batch],
) -> Quantization:
    """`chosen` with the ranges, and with or without equalisation, that keep most of the outputs:
    taken from most of the samples and measured on the others, each sample once.  A single sample
    is measured on itself.  Equalisation has to keep more in every part: where it gains by chance,
    it loses on other samples.

    Other corrections are left aside: they make up for what these leave, whichever they are.
    """
    parts = [batches[k :: min(_FOLDS, len(batches))] for k in range(min(_FOLDS, len(batches)))]
    folds = [
        ([b for other in parts if other is not part for b in other] or part, part) for part in parts
    ]
    candidates = [r for r in Ranges if r is not Ranges.AUTO]
    if chosen.ranges is not Ranges.AUTO:
        candidates = [chosen.ranges]
    best, most = chosen, float("-inf")
    for ranges in candidates:
        plain = msgspec.structs.replace(chosen, ranges=ranges, corrections=())
        kept, parts_kept = _kept(model, way, plain, folds)
        if kept > most:
            best, most = _unequalised(msgspec.structs.replace(chosen, ranges=ranges)), kept
        if Correction.EQUALISE not in chosen.corrections:
            continue
        how = msgspec.structs.replace(plain, corrections=(Correction.EQUALISE,))
        scaled, parts_scaled = _kept(model, way, how, folds)
        always = all(a > b for a, b in zip(parts_scaled, parts_kept, strict=True))
        if scaled > most and always:
            best, most = msgspec.structs.replace(chosen, ranges=ranges), scaled
    return best


def _kept(
    model: OnnxModel,
    way: Callable[[Quantization, Sequence[Batch]], Converted],
    how: Quantization,
    folds: Sequence[tuple[Sequence[Batch], Sequence[Batch]]],
) -> tuple[float, list[float]]:
    """Decibels that the outputs keep on all parts, each calibrated on the others; and on each."""
    together: dict[str, Powers] = {}
    each: list[float] = []
    for calibrating, other in folds:
        alone: dict[str, Powers] = {}
        _add_powers((together, alone), model.ir, way(how, calibrating).model.ir, other)
        each.append(_mean_db(alone))
    return _mean_db(together), each


def _add_powers(
    sums: Sequence[dict[str, Powers]],
    exact: onnx_ir.Model,
    rounded: onnx_ir.Model,
    batches: Sequence[Batch],
) -> None:
    first, second = Session(exact), Session(rounded)
    for batch in batches:
        want = first.run({k: v for k, v in batch.items() if k in first.inputs})
        got = second.run({k: v for k, v in batch.items() if k in second.inputs})
        for name, a, b in zip(first.outputs, want, got, strict=True):
            if a.dtype.kind == "f":
                for powers in sums:
                    powers.setdefault(name, Powers()).add(a, b)


def _decibels(powers: Mapping[str, Powers]) -> list[float]:
    """Of every output that has a ratio or no noise."""
    found: list[float] = []
    for power in powers.values():
        sqnr = power.sqnr()
        if sqnr.db is not None:
            found.append(sqnr.db)
        elif sqnr.is_exact:
            found.append(_KNOWN_EXACT)
    return found


def _mean_db(powers: Mapping[str, Powers]) -> float:
    found = _decibels(powers)
    return sum(found) / len(found) if found else _KNOWN_EXACT


def _least_db(model: OnnxModel, found: Converted, batches: Sequence[Batch]) -> float:
    powers: dict[str, Powers] = {}
    _add_powers((powers,), model.ir, found.model.ir, batches)
    return min(_decibels(powers), default=_KNOWN_EXACT)


def _within(
    model: OnnxModel,
    way: Way,
    placement: Sequence[Placement],
    chosen: Quantization,
    batches: Sequence[Batch],
    found: Converted,
) -> Converted:
    """Leave the most sensitive operators float until every output keeps `min_sqnr`.

    An operator's sensitivity is what the outputs keep when it alone is quantised.  The fewest that
    suffice, in this order, are found by bisection.
    """
    assert chosen.min_sqnr is not None
    if _least_db(model, found, batches) >= chosen.min_sqnr:
        return found
    few = batches[:_FEW]
    plain = msgspec.structs.replace(chosen, corrections=(), min_sqnr=None)
    rows: list[Sensitivity] = []
    for node in found.converted_nodes:
        others = [row.node for row in placement if row.node != node]
        alone = way(plain, _without(placement, others), few)
        if alone.converted_nodes:
            rows.append(Sensitivity(node, _least_db(model, alone, few)))
    rows.sort(key=lambda row: (row.sqnr_db, row.node))

    def leaving(count: int) -> Converted:
        names = [row.node for row in rows[:count]]
        return way(chosen, _without(placement, names), batches)

    low, high = 0, len(rows)
    best = leaving(high)
    while high - low > 1:
        middle = (low + high) // 2
        tried = leaving(middle)
        if _least_db(model, tried, batches) >= chosen.min_sqnr:
            high, best = middle, tried
        else:
            low = middle
    kept = tuple(rows[:high])
    said = (
        "KEPT_FLOAT",
        f"{len(kept)} of {len(rows)} operators stay float so that every output keeps"
        f" {chosen.min_sqnr:g} dB: {', '.join(row.node for row in kept[:3])}"
        f"{' ...' if len(kept) > 3 else ''}",
    )
    quantised = replace(best.quantised, sensitivities=kept)
    return replace(best, warnings=(*best.warnings, said), quantised=quantised)
