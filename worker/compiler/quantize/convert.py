"""Partial quantisation: give the regions of a float model the number format of their target.

    select -> observe -> parameters -> rewrite        integers first, then 16-bit floats

Source: BYOC section 3.2 and Fig. 4a.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import onnx_ir

from worker.compiler.errors import PassContractError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import interface_of, require_interface
from worker.compiler.frontend.qdq import find_clusters
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Conversion
from worker.compiler.partition.plan import Placement
from worker.compiler.quantization import DEFAULT, Quantization
from worker.compiler.quantize.boundary import NOT_QUANTISED, Boundary, Converted, Quantised
from worker.compiler.quantize.correct import correct
from worker.compiler.quantize.integer import rewrite_integer
from worker.compiler.quantize.narrow import (
    observed_names,
    overflowing,
    rewrite_narrow,
    select_narrow,
)
from worker.compiler.quantize.ranges import Observed
from worker.compiler.quantize.select import Selection, select
from worker.compiler.quantize.sharing import parameters_of

Batch = Mapping[str, npt.NDArray[Any]]
Calibration = Callable[[Sequence[str]], Mapping[str, Observed]]
"""Ranges of values of the model, by name; asked for nothing when nothing is needed."""

_MASK_MAGNITUDE = 1e30
"""Values this large are masks (minus infinity in disguise), not quantities with a scale."""
_IR_VERSION = 10
"""Of opsets 21 and 22.  Files older than 4 would have to list every constant as an input."""
_SHOWN_NODES = 3
_BF16_OPSET = 22
"""Opset that defines convolutions and pools on bfloat16; it differs from 21 in types only."""


def convert(
    model: OnnxModel,
    placement: Sequence[Placement],
    choices: Mapping[str, Conversion],
    calibration: Calibration,
    chosen: Quantization = DEFAULT,
    samples: Callable[[], Sequence[Batch]] = tuple,
) -> Converted:
    """Convert the nodes that `placement` gives to targets with a choice.

    Integers: QDQ form, see `integer`.  F16 and BF16: casts, see `narrow`.  Nodes, their order, and
    the names and types of everything read outside the regions stay; what is inserted is marked
    `tilewright.inserted` and has its types and shapes.  A model that is quantised already comes
    back as it was.

    Args:
        model: simplified; not changed.
        placement: one row per node, in model order, as annotated for the converted types.
        choices: conversion by target name; other targets' nodes stay as they are.
        calibration: asked once or twice, for all values that need a range.
        chosen: how floats become integers.
        samples: batches that calibrate; asked for by corrections alone.

    Raises:
        ModelError: TW-CAL-004, a value to quantise or a weight is not finite; names its node.
        PassContractError: the placement is of another model.

    Cost: that of `calibration`, and linear in nodes and constants of the converted nodes.
    """
    targets = _targets(model, placement)
    producers = {v.name: node.name or "" for node in model.ir.graph for v in node.outputs if v.name}
    clone = model.ir.clone()
    nodes = list(clone.graph)
    integers = {k: c for k, c in choices.items() if c.dtype in (DType.I8, DType.U8)}
    floats = {k: c for k, c in choices.items() if c.dtype in (DType.F16, DType.BF16)}
    seen = _Seen(calibration)
    boundaries: tuple[Boundary, ...] = ()
    quantised = NOT_QUANTISED
    converted: set[str] = set()
    left: list[tuple[str, str]] = []
    uncorrected: list[tuple[str, str]] = []
    own = {
        nodes[k].name or "": "the model itself makes it part of an integer operator"
        for cluster in find_clusters(nodes, [v.name or "" for v in clone.graph.outputs])
        for k in cluster.nodes
    }
    if integers:
        selection = _select(nodes, targets, integers, seen)
        left += selection.left
        if selection.members:
            parameters = parameters_of(selection, integers, seen.values, chosen)
            boundaries += rewrite_integer(clone.graph, selection, integers, parameters, seen.values)
            converted.update(m.node.name or "" for m in selection.members)
            quantised = Quantised(chosen.ranges)
            if chosen.corrections:
                products = [m.node.name or "" for m in selection.members]
                clone.ir_version = max(clone.ir_version or 0, _IR_VERSION)
                corrected, kept = correct(clone, model.ir, products, samples(), chosen.corrections)
                uncorrected += kept
                quantised = Quantised(chosen.ranges, corrected=corrected)
    opset = model.opset
    if floats:
        is_bf16 = any(c.dtype is DType.BF16 for c in floats.values())
        wanted = _BF16_OPSET if is_bf16 and opset == _BF16_OPSET - 1 else opset
        excluded = dict(own)
        while True:
            members, stays = select_narrow(nodes, targets, floats, wanted, excluded)
            seen.need(observed_names(members))
            too_large = overflowing(members, seen.values)
            if not too_large:
                break
            excluded.update(too_large)
        left += stays
        if members:
            boundaries += rewrite_narrow(clone.graph, members, seen.values, producers)
            clone.opset_imports[""] = opset = wanted
            converted.update(m.node.name or "" for m in members)
    warnings = _warnings(left, uncorrected, boundaries, choices)
    if not converted:
        return Converted(model, warnings=warnings)
    clone.ir_version = max(clone.ir_version or 0, _IR_VERSION)
    require_interface("number formats", interface_of(model.ir), clone)
    return Converted(
        replace(model, ir=clone, opset=opset), boundaries,
        tuple(row.node for row in placement if row.node in converted), warnings,
        quantised=quantised,
    )  # fmt: skip


class _Seen:
    """Observations so far; every value is asked for once."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self.values: dict[str, Observed] = {}

    def need(self, names: Sequence[str]) -> None:
        new = tuple(name for name in names if name not in self.values)
        if new:
            self.values.update(self._calibration(new))
        missing = [name for name in new if name not in self.values]
        if missing:
            raise PassContractError("quantize.convert", f"{missing[0]!r} was not calibrated")


def _targets(model: OnnxModel, placement: Sequence[Placement]) -> list[str]:
    names = [node.name or "" for node in model.ir.graph]
    if names != [row.node for row in placement]:
        raise PassContractError(
            "quantize.convert",
            f"{len(placement)} placement rows do not name the {len(names)} nodes of the model",
        )
    return [row.target for row in placement]


def _select(
    nodes: Sequence[onnx_ir.Node],
    targets: Sequence[str],
    choices: Mapping[str, Conversion],
    seen: _Seen,
) -> Selection:
    """Members whose values all have ranges that integers can cover."""
    excluded: dict[str, str] = {}
    while True:
        selection = select(nodes, targets, choices, excluded)
        seen.need(tuple(dict.fromkeys(key[0].name or "" for key in selection.keys)))
        masks: dict[str, str] = {}
        for member in selection.members:
            for value in (*(v for _, v in member.reads), *member.writes):
                found = seen.values[value.name or ""]
                reach = max(-found.low, found.high)
                if found.is_finite and reach > _MASK_MAGNITUDE:
                    masks[member.node.name or ""] = (
                        f"{value.name} reaches {reach:g}: a mask has no useful scale"
                    )
        if not masks:
            return selection
        excluded.update(masks)


def _warnings(
    left: Sequence[tuple[str, str]],
    uncorrected: Sequence[tuple[str, str]],
    boundaries: Sequence[Boundary],
    choices: Mapping[str, Conversion],
) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for code, rows in (("NOT_CONVERTED", left), ("NOT_CORRECTED", uncorrected)):
        nodes_of: dict[str, list[str]] = {}
        for node, why in rows:
            nodes_of.setdefault(why, []).append(node)
        found += [(code, f"{_listed(nodes)}: {why}") for why, nodes in nodes_of.items()]
    for boundary in boundaries:
        least = choices[boundary.target].min_sqnr_db
        if boundary.sqnr_db is not None and least > 0.0 and boundary.sqnr_db < least:
            found.append((
                "LOW_SQNR",
                f"{boundary.value} keeps {boundary.sqnr_db:.1f} dB as {boundary.dtype},"
                f" {boundary.target} asks for {least:g} dB",
            ))  # fmt: skip
    return tuple(found)


def _listed(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:_SHOWN_NODES])
    more = len(nodes) - _SHOWN_NODES
    return f"{shown} and {more} more" if more > 0 else shown
