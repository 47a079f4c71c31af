"""Add to a model the definitions that a hardware document has and the model lacks.

The completed model is a model of its own, with functions as any exporter writes them: what reads a
user's file afterwards (the front end, ONNX Runtime as the reference) needs no other word for an
operator of a vendor.  What a model defines itself, it means.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

from worker.compiler.errors import ModelError
from worker.compiler.frontend.bundle_files import model_name, open_model_file
from worker.compiler.frontend.call_marks import (
    caller_of,
    changed_operator,
    definition_digests,
    nested_nodes,
    opset_of_function,
)
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.wire import strip
from worker.compiler.machine.lint.operators import parsed_definition
from worker.compiler.machine.operator import DeclaredOperator, foreign_name

_STANDARD = ("", "ai.onnx")


def declared_digests(operators: Sequence[DeclaredOperator]) -> Mapping[str, str]:
    """Digests of what the operators of a checked document compute, by name."""
    return _digests(tuple(operators))


@lru_cache(maxsize=64)
def _digests(operators: tuple[DeclaredOperator, ...]) -> Mapping[str, str]:
    return MappingProxyType(definition_digests(declared_functions(operators)))


def declared_functions(operators: Sequence[DeclaredOperator]) -> dict[str, onnx.FunctionProto]:
    """The definitions of a checked document, by name."""
    found: dict[str, onnx.FunctionProto] = {}
    for operator in operators:
        function = parsed_definition(operator.definition)
        assert isinstance(function, onnx.FunctionProto), "the lint reads every definition"
        found[operator.name] = function
    return found


def completed(
    path: Path, operators: Sequence[DeclaredOperator], folder: Path, limits: Limits
) -> Path:
    """The model file at `path`, or a copy in `folder` with the definitions that it lacks.

    A file that cannot be read is given back as it is: who loads it says what is wrong.

    Raises:
        ModelError: TW-MODEL-001 to -003, -011 for the file; TW-MODEL-022 with the definition's
            pointer, a definition whose operators have another form in the model's opset.
    Cost: nothing where the document defines no operator, else the model without its weights is
        read; a copy of the file where a definition is added.
    """
    if not operators:
        return path
    file = open_model_file(path, limits)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(strip(file.model, limits).stripped)
    except (DecodeError, ValueError):
        return path
    added = _lacking(proto, declared_functions(operators))
    if not added:
        return path
    _require_forms(proto, added, operators)
    more = _additions(proto, added)
    target = folder / f"completed{path.suffix}"
    if not file.is_bundle:
        shutil.copyfile(path, target)
        with target.open("ab") as out:
            out.write(more)  # fields of a message that follow join those before
        return target
    name = model_name(tuple(file.members))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for member, entry in file.members.items():
            with archive.open(zipfile.ZipInfo(member), "w", force_zip64=True) as out:
                out.write(entry.content())
                out.write(more if member == name else b"")
    return target


def _lacking(
    proto: onnx.ModelProto, functions: Mapping[str, onnx.FunctionProto]
) -> dict[str, onnx.FunctionProto]:
    """Definitions of what the model calls and does not define, and of what those call."""
    own = {foreign_name(f.domain, f.name) for f in proto.functions}
    added: dict[str, onnx.FunctionProto] = {}
    waiting: list[Any] = [proto.graph.node, *(f.node for f in proto.functions)]
    while waiting:
        for node in nested_nodes(waiting.pop()):
            name = foreign_name(node.domain, node.op_type)
            if name in functions and name not in own and name not in added:
                added[name] = functions[name]
                waiting.append(functions[name].node)
    return {name: added[name] for name in functions if name in added}


def _require_forms(
    proto: onnx.ModelProto,
    added: Mapping[str, onnx.FunctionProto],
    operators: Sequence[DeclaredOperator],
) -> None:
    opset = next((o.version for o in proto.opset_import if o.domain in _STANDARD), None)
    if opset is None:
        return
    pointers = {operator.name: operator.pointer for operator in operators}
    for name, function in added.items():
        changed = changed_operator(function, opset)
        if changed is not None:
            raise ModelError(
                "TW-MODEL-022",
                f"the hardware spec defines {name} in opset {opset_of_function(function)} by"
                f" {changed}, which has another form in the model's opset {opset}",
                node=caller_of(proto, function), pointer=pointers[name], limit=opset,
                actual=opset_of_function(function),
            )  # fmt: skip


def _additions(proto: onnx.ModelProto, added: Mapping[str, onnx.FunctionProto]) -> bytes:
    """Functions, and the domains that they need, as fields of a ModelProto."""
    more = onnx.ModelProto()
    imported = {entry.domain for entry in proto.opset_import}
    for function in added.values():
        made = more.functions.add()
        made.CopyFrom(function)
        needed = {function.domain: 1, **{o.domain: o.version for o in function.opset_import}}
        inside = {entry.domain for entry in made.opset_import}
        for node in nested_nodes(function.node):
            if node.domain not in inside and node.domain not in _STANDARD:
                made.opset_import.add(domain=node.domain, version=1)
                inside.add(node.domain)
                needed.setdefault(node.domain, 1)
        for domain, version in needed.items():
            if domain not in imported and domain not in _STANDARD:
                imported.add(domain)
                more.opset_import.add(domain=domain, version=version)
    data: bytes = more.SerializeToString(deterministic=True)
    return data
