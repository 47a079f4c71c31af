"""Rules about definitions of operators of foreign domains: text, names, bodies, recursion.

A body is of operators that ONNX has in the opset which the definition imports, or of operators
defined in the same document.  What is not found here, types and shapes, depends on who calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from worker.compiler.machine.lint.places import pattern_tables
from worker.compiler.machine.lint.targets import places
from worker.compiler.machine.lint.terms import factors
from worker.compiler.machine.lint.view import Defect, SpecReader, one_of
from worker.compiler.machine.operator import foreign_name, is_foreign, split_foreign
from worker.compiler.machine.rule import attribute_name

OLDEST_OPSET = 7
_MAX_NESTING = 8
"""Braces inside braces of a text: the parser goes down by recursion."""
_STANDARD = ("", "ai.onnx")


@lru_cache(maxsize=256)
def parsed_definition(text: str) -> Any:
    """The onnx.FunctionProto of a definition, or the words of the parser (str).

    Not to be changed by who gets it: it is kept.
    """
    import onnx
    import onnx.parser

    depth = deepest = 0
    for character in text:
        depth += (character in "{<[(") - (character in "}>])")
        deepest = max(deepest, depth)
    if deepest > _MAX_NESTING:
        return f"it is nested {deepest} deep; {_MAX_NESTING} is the most"
    try:
        function = onnx.parser.parse_function(text)
    except (onnx.parser.ParseError, RuntimeError, ValueError, UnicodeError) as error:
        return " ".join(str(error).split())[:400]
    return function if isinstance(function, onnx.FunctionProto) else "it is no function"


def definitions_are_sound(view: SpecReader) -> Iterator[Defect]:
    found: dict[str, tuple[str, Any]] = {}
    for item in view.items("/operators"):
        name, text = view.text(f"{item}/name"), view.text(f"{item}/definition")
        if name is None or text is None:
            continue
        at = f"{item}/definition"
        if split_foreign(name) is None:
            yield Defect(
                f"{item}/name", f"{name!r} names no operator of a domain of its own",
                "domain::OpType, the domain not one of ONNX's", name,
            )  # fmt: skip
            continue
        if name in found:
            yield Defect(
                f"{item}/name", f"{name} is already defined at {found[name][0]}",
                "each operator once", name,
            )  # fmt: skip
            continue
        function = parsed_definition(text)
        if isinstance(function, str):
            yield Defect(at, f"the definition of {name} cannot be read: {function}",
                         "an ONNX function in ONNX's text form", None)  # fmt: skip
            continue
        own = foreign_name(function.domain, function.name)
        if own != name:
            yield Defect(at, f"the definition of {name} is that of {own}", name, own)
            continue
        found[name] = (at, function)
    functions = {name: function for name, (_, function) in found.items()}
    for name, (at, function) in found.items():
        for message, allowed, actual in _body_defects(name, function, functions):
            yield Defect(at, f"the definition of {name}: {message}", allowed, actual)
    yield from _recursion(found, functions)


_Wrong = tuple[str, str, Any]


def _body_defects(name: str, function: Any, functions: Mapping[str, Any]) -> Iterator[_Wrong]:
    import onnx.defs

    newest = onnx.defs.onnx_opset_version()
    opset = next((o.version for o in function.opset_import if o.domain in _STANDARD), None)
    if opset is None or not OLDEST_OPSET <= opset <= newest:
        said = "no opset" if opset is None else f"opset {opset}"
        yield f"it imports {said} of ONNX", f"{OLDEST_OPSET} to {newest}", opset
        return
    if not function.node or not function.output:
        yield "its body computes nothing", "nodes and an output", None
        return
    for names, what in ((function.input, "input"), (function.output, "output")):
        twice = next((n for k, n in enumerate(names) if n in list(names)[:k]), None)
        if twice is not None:
            yield f"{what} {twice!r} is there twice", "different names", twice
    known = set(function.input)
    for k, node in enumerate(function.node):
        label = f"node {k} ({node.op_type})"
        yield from _node_defects(label, node, function, functions, opset)
        for value in node.input:
            if value and value not in known:
                yield f"{label} reads {value!r}, which nothing before it defines", "", value
        for value in node.output:
            if value in known:
                yield f"{label} defines {value!r} again", "a name defined once", value
        known.update(value for value in node.output if value)
    for value in function.output:
        if value not in known:
            yield f"nothing defines its output {value!r}", "an output that a node defines", value


def _node_defects(
    label: str, node: Any, function: Any, functions: Mapping[str, Any], opset: int
) -> Iterator[_Wrong]:
    declared = {*function.attribute, *(a.name for a in function.attribute_proto)}
    for attribute in node.attribute:
        said = attribute.ref_attr_name
        if said and said not in declared:
            yield (
                f"{label} takes attribute {said!r}, which the operator does not have",
                f"one of {', '.join(sorted(declared))}" if declared else "no attributes", said,
            )  # fmt: skip
    given = [attribute.name for attribute in node.attribute]
    if node.domain in _STANDARD:
        yield from _standard_defects(label, node, given, opset)
        return
    callee = functions.get(foreign_name(node.domain, node.op_type))
    if callee is None:
        missing = foreign_name(node.domain, node.op_type)
        names = list(functions)
        yield (
            f"{label}: there is no definition of {missing}" + one_of(missing, names),
            "operators of ONNX, or defined in the same document", missing,
        )  # fmt: skip
        return
    limits = ((node.input, callee.input, "inputs"), (node.output, callee.output, "outputs"))
    for actual, formal, what in limits:
        if len(actual) > len(formal):
            yield f"{label} has {len(actual)} {what}", f"at most {len(formal)}", len(actual)
    taken = {*callee.attribute, *(a.name for a in callee.attribute_proto)}
    for each in given:
        if each not in taken:
            yield (
                f"{label} has no attribute {each!r}" + one_of(each, sorted(taken)),
                f"one of {', '.join(sorted(taken))}" if taken else "no attributes", each,
            )  # fmt: skip


def _standard_defects(label: str, node: Any, given: list[str], opset: int) -> Iterator[_Wrong]:
    import onnx.defs

    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        yield f"{label} does not exist in opset {opset}", "operators of its opset", node.op_type
        return
    if schema.deprecated:
        yield f"{label} was removed before opset {opset}", "operators of its opset", node.op_type
    for count, least, most, what in (
        (len(node.input), schema.min_input, schema.max_input, "inputs"),
        (len(node.output), schema.min_output, schema.max_output, "outputs"),
    ):
        if not least <= count <= most:
            yield f"{label} has {count} {what}", f"{least} to {most}", count
    names = sorted(map(str, schema.attributes))
    for each in given:
        if each not in names:
            yield (
                f"{label} has no attribute {each!r}" + one_of(each, names),
                f"one of {', '.join(names)}" if names else "no attributes", each,
            )  # fmt: skip
    for each, attribute in schema.attributes.items():
        if attribute.required and each not in given:
            yield f"{label} lacks attribute {each!r}", "every attribute that ONNX requires", None


def _recursion(
    found: Mapping[str, tuple[str, Any]], functions: Mapping[str, Any]
) -> Iterator[Defect]:
    """Definitions that lead back to themselves: each once, at its own place."""
    calls = {
        name: [
            called
            for node in function.node
            if (called := foreign_name(node.domain, node.op_type)) in functions
        ]
        for name, function in functions.items()
    }
    for name in calls:
        waiting, seen = list(calls[name]), set[str]()
        while waiting:
            called = waiting.pop()
            if called == name:
                yield Defect(
                    found[name][0], f"the definition of {name} leads back to {name}",
                    "definitions that end in operators of ONNX", name,
                )  # fmt: skip
                break
            if called not in seen:
                seen.add(called)
                waiting += calls[called]


def rules_ask_for_their_attributes(view: SpecReader) -> Iterator[Defect]:
    """Rows and places about a defined operator name attributes that it has."""
    taken: dict[str, list[str]] = {}
    for name, item in view.names("/operators").items():
        function = parsed_definition(view.text(f"{item}/definition") or "")
        if not isinstance(function, str):
            attributes = {*function.attribute, *(a.name for a in function.attribute_proto)}
            taken[name] = sorted(attributes)
    for pointer, name, asked in (*_asked_by_rows(view), *_asked_by_patterns(view)):
        if name in taken and asked not in taken[name]:
            known = taken[name]
            yield Defect(
                pointer, f"{name} has no attribute {asked!r}" + one_of(asked, known),
                f"one of {', '.join(known)}" if known else "no attributes", asked,
            )  # fmt: skip


_Asked = tuple[str, str, str]
"""Where, of which operator, which attribute."""


def _asked_by_rows(view: SpecReader) -> Iterator[_Asked]:
    for place in places(view):
        for row in view.items(f"{place.capabilities}/ops"):
            name = view.text(f"{row}/op_type")
            waiting = [row] if name is not None and is_foreign(name) else []
            while waiting:
                clause = waiting.pop()
                for attribute in view.keys(f"{clause}/attributes"):
                    yield f"{clause}/attributes/{attribute}", name or "", attribute
                for condition in view.items(f"{clause}/conditions"):
                    waiting += view.items(f"{condition}/any_of")
                    for side in view.keys(condition):
                        for at, factor in factors(view, f"{condition}/{side}"):
                            found = attribute_name(factor) if isinstance(factor, str) else None
                            if found is not None:
                                yield at, name or "", found.name


def _asked_by_patterns(view: SpecReader) -> Iterator[_Asked]:
    for table in pattern_tables(view):
        for row in table.rows:
            for place in table.match(row).walk():
                for attribute in view.keys(f"{place.pointer}/attributes"):
                    for _, name in place.op_types():
                        if is_foreign(name):
                            yield f"{place.pointer}/attributes/{attribute}", name, attribute


OPERATOR_RULES: tuple[Callable[[SpecReader], Iterator[Defect]], ...] = (
    definitions_are_sound,
    rules_ask_for_their_attributes,
)
