"""Give symbolic dimensions their values (`--set batch=8`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir

from worker.compiler.errors import Detail, Finding, ModelError
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel


def symbols_of(model: OnnxModel) -> dict[str, tuple[str, ...]]:
    """Symbolic dimensions of the model's inputs -> where they occur, in order of appearance.

    A dimension without a name is called `INPUT.dimK`.
    """
    found: dict[str, list[str]] = {}
    for value in model.ir.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                found.setdefault(_symbol(value, axis, dim), []).append(f"{value.name}[{axis}]")
    return {symbol: tuple(places) for symbol, places in found.items()}


def bind(model: OnnxModel, symbols: Mapping[str, int]) -> OnnxModel:
    """Bind every symbol of the inputs; forget recorded shapes that depended on symbols.

    Edits `model.ir`.  Defaults in the model's metadata are not used.

    Raises:
        ModelError: TW-MODEL-012 for symbols without a value (a finding each), TW-MODEL-020 for
            names the model does not have, TW-MODEL-007 for values out of range, TW-MODEL-017 for
            inputs without any shape.
    """
    limits = Limits()
    known = symbols_of(model)
    findings = [
        Finding("TW-MODEL-017", f"input {value.name!r} has no shape at all")
        for value in model.ir.graph.inputs
        if value.shape is None and not _is_sequence(value)
    ]
    findings += [
        Finding(
            "TW-MODEL-020",
            f"the model has no symbolic dimension {name!r}",
            None,
            None,
            list[Detail](known),
            name,
        )
        for name in sorted(set(symbols) - set(known))
    ]
    findings += [
        Finding("TW-MODEL-007", f"symbol {name!r} is {value}", None, None, limits.max_dim, value)
        for name, value in sorted(symbols.items())
        if not 1 <= value <= limits.max_dim
    ]
    findings += [
        Finding(
            "TW-MODEL-012",
            f"symbol {name!r} has no value; it is used at {', '.join(places)}",
            None,
            None,
            "an integer from 1",
            name,
        )
        for name, places in known.items()
        if name not in symbols
    ]
    if not findings:
        for value in model.ir.graph.inputs:
            if value.shape is None:
                continue
            dims = [
                dim if isinstance(dim, int) else symbols[_symbol(value, axis, dim)]
                for axis, dim in enumerate(value.shape)
            ]
            if math.prod(dims) > limits.max_elements:
                findings.append(
                    Finding(
                        "TW-MODEL-007",
                        f"input {value.name!r} has {math.prod(dims)} elements",
                        None,
                        None,
                        limits.max_elements,
                        str(math.prod(dims)),
                    )
                )
            value.shape = onnx_ir.Shape(dims)
    if findings:
        first = findings[0]
        unbound = [f.actual for f in findings if f.code == "TW-MODEL-012"]
        raise ModelError(
            first.code, first.message, limit=first.allowed, actual=first.actual,
            remedy=f"Use --set, for example --set {unbound[0]}=1." if unbound and known else None,
            findings=tuple(findings),
        )  # fmt: skip
    for node in model.ir.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None and not model.is_static(value):
                value.shape = None
    return model


def _symbol(value: onnx_ir.Value, axis: int, dim: onnx_ir.SymbolicDim) -> str:
    return dim.value or f"{value.name}.dim{axis}"


def _is_sequence(value: onnx_ir.Value) -> bool:
    return isinstance(value.type, onnx_ir.SequenceType | onnx_ir.OptionalType)
