"""Rules about what a document says of its accelerators: one function a rule, for every target.

A document has `capabilities` (one accelerator) or `targets` (several, each with capabilities); the
rules run on all of them alike.  Patterns are lint_patterns.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from worker.compiler.ir.layout import parse_layout
from worker.compiler.machine.lint.attributes import attribute_defects
from worker.compiler.machine.lint.contradictions import contradictions
from worker.compiler.machine.lint.terms import condition_defects, limits_are_ranges
from worker.compiler.machine.lint.view import Defect, SpecReader, one_of
from worker.compiler.machine.operator import is_foreign
from worker.compiler.machine.presets import known_ops, op_groups

COMPUTE = ("matrix", "vector", "scalar")
"""Kinds of engines that compute; the others move."""
_FLOATS = ("f64", "f32", "f16", "bf16")
_AXES = {"activations": frozenset("NCDHW"), "weights": frozenset("OIDHW")}
_NEEDED = {"activations": frozenset("NC"), "weights": frozenset("OI")}


@dataclass(frozen=True, slots=True)
class CapabilityPlace:
    """Where one target's capabilities stand in the document."""

    capabilities: str
    """Pointer."""
    target: str | None
    """Pointer to the target; None: the document has plain `capabilities`."""


def places(view: SpecReader) -> Iterator[CapabilityPlace]:
    """All capabilities of a document, in its order."""
    if view.raw("/capabilities") is not None:
        yield CapabilityPlace("/capabilities", None)
    for target in view.items("/targets"):
        yield CapabilityPlace(f"{target}/capabilities", target)


def rates(view: SpecReader, place: CapabilityPlace) -> set[str]:
    """Dtypes for which an engine that the target may use has a rate."""
    chosen: set[str | None] = set()
    if place.target is not None:
        chosen = {view.text(item) for item in view.items(f"{place.target}/engines")}
    found: set[str] = set()
    for engine in view.items("/engines"):
        if view.text(f"{engine}/kind") not in COMPUTE:
            continue
        if not chosen or view.text(f"{engine}/name") in chosen:
            found.update(view.keys(f"{engine}/macs_per_cycle"))
    return found


def target_engines(view: SpecReader) -> Iterator[Defect]:
    engines = view.names("/engines")
    computing = [n for n, at in engines.items() if view.text(f"{at}/kind") in COMPUTE]
    for target in view.items("/targets"):
        for item in view.items(f"{target}/engines"):
            name = view.text(item)
            if name is None or name in computing:
                continue
            why = (
                "moves data and is shared by all targets"
                if name in engines
                else "does not exist" + one_of(name, computing)
            )
            yield Defect(
                item, f"the target names engine {name!r}, which {why}",
                f"one of {', '.join(computing)}", name,
            )  # fmt: skip


def dtype_has_engine(view: SpecReader) -> Iterator[Defect]:
    for place in places(view):
        offered = rates(view, place)
        if not offered:
            continue
        for pointer in view.items(f"{place.capabilities}/dtypes"):
            dtype = view.text(pointer)
            if dtype is not None and dtype not in offered:
                remedy = f"or give an engine macs_per_cycle/{dtype}"
                if dtype in _FLOATS:
                    remedy += (
                        f", or leave {dtype} out: a row of conversions (option precision) turns "
                        "models into a format that engines have"
                    )
                yield Defect(
                    pointer, f"dtype {dtype} is declared, but no engine has a rate for it",
                    f"one of {', '.join(sorted(offered))}, {remedy}", dtype,
                )  # fmt: skip


def known_op_types(view: SpecReader) -> Iterator[Defect]:
    names = sorted(known_ops())
    for place in places(view):
        at = place.capabilities
        pointers = [f"{op}/op_type" for op in view.items(f"{at}/ops")]
        pointers += list(view.items(f"{at}/exclude"))
        pointers += list(view.items(f"{at}/layout/op_types"))
        for conversion in view.items(f"{at}/conversions"):
            pointers += list(view.items(f"{conversion}/op_types"))
        for pointer in pointers:
            name = view.text(pointer)
            if name is None or name in known_ops():
                continue
            if pointer.endswith("/op_type") and is_foreign(name):
                continue
            yield Defect(
                pointer, f"{name!r} is not an operator of ONNX" + one_of(name, names),
                "an op type of the ai.onnx domain"
                + (", or domain::OpType of another" if pointer.endswith("/op_type") else ""), name,
            )  # fmt: skip
        for pointer in view.items(f"{at}/groups"):
            name = view.text(pointer)
            if name is not None and name not in op_groups():
                yield Defect(
                    pointer, f"there is no op group {name!r}" + one_of(name, list(op_groups())),
                    f"one of {', '.join(op_groups())}", name,
                )  # fmt: skip
        offered = any(view.raw(f"{at}/{key}") for key in ("ops", "groups", "patterns"))
        if view.keys(at) and not offered:
            yield Defect(
                at, "no operator is offered, so nothing would run on the accelerator",
                "groups, ops or patterns", None,
            )  # fmt: skip


def op_limits(view: SpecReader) -> Iterator[Defect]:
    for place in places(view):
        seen: dict[str, str] = {}
        for op in view.items(f"{place.capabilities}/ops"):
            op_type = view.text(f"{op}/op_type")
            if op_type is not None and seen.setdefault(op_type, op) != op:
                yield Defect(
                    f"{op}/op_type", f"{op_type} is already listed at {seen[op_type]}",
                    "each op type once", op_type,
                )  # fmt: skip
            yield from limits_are_ranges(view, op)


def op_attributes(view: SpecReader) -> Iterator[Defect]:
    for place in places(view):
        for op in view.items(f"{place.capabilities}/ops"):
            op_type = view.text(f"{op}/op_type")
            if op_type is not None:
                yield from attribute_defects(view, f"{op}/attributes", (op_type,))


def op_conditions(view: SpecReader) -> Iterator[Defect]:
    """Conditions that are well formed; where all are, that some node can satisfy the row."""
    for place in places(view):
        for op in view.items(f"{place.capabilities}/ops"):
            op_type = view.text(f"{op}/op_type")
            if op_type is None:
                continue
            wrong = list(condition_defects(view, op, op_type))
            yield from wrong
            if not wrong:
                yield from contradictions(view, op, op_type)


def op_dtypes(view: SpecReader) -> Iterator[Defect]:
    """An op of a dtype that its target does not have at all would never run."""
    for place in places(view):
        at = place.capabilities
        declared = [view.text(item) for item in view.items(f"{at}/dtypes")]
        for op in view.items(f"{at}/ops"):
            for item in view.items(f"{op}/dtypes"):
                name = view.text(item)
                if name is not None and declared and name not in declared:
                    yield Defect(
                        item, f"{view.text(f'{op}/op_type')} of {name} is offered, but {name} is "
                        "not among the dtypes of the target",
                        f"one of {', '.join(d for d in declared if d)}", name,
                    )  # fmt: skip


def buffer_level(view: SpecReader) -> Iterator[Defect]:
    levels = view.names("/levels")
    fitting = [name for name, at in levels.items() if view.managed(at) == "scratchpad"]
    for place in places(view):
        pointer = f"{place.capabilities}/partition/buffer_fit"
        name = view.text(pointer)
        if name is not None and name not in fitting:
            why = (
                f"is a {view.managed(levels[name])}: nothing is placed in it"
                if name in levels
                else "does not exist" + one_of(name, fitting)
            )
            yield Defect(
                pointer, f"memory level {name!r} {why}", f"one of {', '.join(fitting)}", name
            )


def conversion_dtypes(view: SpecReader) -> Iterator[Defect]:
    for place in places(view):
        at = place.capabilities
        declared = [view.text(item) for item in view.items(f"{at}/dtypes")]
        offered = rates(view, place)
        seen: dict[str, str] = {}
        for conversion in view.items(f"{at}/conversions"):
            dtype = view.text(f"{conversion}/dtype")
            if dtype is None:
                continue
            pointer = f"{conversion}/dtype"
            if seen.setdefault(dtype, conversion) != conversion:
                yield Defect(
                    pointer, f"a conversion to {dtype} is already given at {seen[dtype]}",
                    "one conversion per dtype", dtype,
                )  # fmt: skip
            if declared and dtype not in declared:
                yield Defect(
                    pointer, f"{dtype} is not among the dtypes of the target",
                    f"one of {', '.join(d for d in declared if d)}", dtype,
                )  # fmt: skip
            elif offered and dtype not in offered:
                yield Defect(
                    pointer, f"numbers are converted to {dtype}, but no engine has a rate for it",
                    f"one of {', '.join(sorted(offered))}", dtype,
                )  # fmt: skip
            yield from _sources(view, conversion, dtype)


def _sources(view: SpecReader, conversion: str, dtype: str) -> Iterator[Defect]:
    allowed = [name for name in _FLOATS if name != dtype]
    for item in view.items(f"{conversion}/sources"):
        name = view.text(item)
        if name is not None and name not in allowed:
            yield Defect(
                item, f"a conversion to {dtype} cannot start from {name}",
                f"one of {', '.join(allowed)}", name,
            )  # fmt: skip


def layout_letters(view: SpecReader) -> Iterator[Defect]:
    """Letters of a layout name each axis once; a block (`16c`) splits one of them."""
    for place in places(view):
        for field, axes in _AXES.items():
            pointer = f"{place.capabilities}/layout/{field}"
            text = view.text(pointer)
            wrong = None if text is None else _layout_defect(text, axes, _NEEDED[field])
            if wrong is not None:
                example = "NHWC or NCHW16c" if field == "activations" else "HWIO or OIHW16i16o"
                yield Defect(pointer, f"layout {text!r}: {wrong}", f"for example {example}", text)


def _layout_defect(text: str, axes: frozenset[str], needed: frozenset[str]) -> str | None:
    outer = [c for c in text if c.isupper()]
    inner = [c for c in text if c.islower()]
    for letter in outer:
        if letter not in axes:
            return f"{letter} is not an axis (axes: {', '.join(sorted(axes))})"
        if outer.count(letter) > 1:
            return f"the axis {letter} is named twice"
    missing = sorted(needed - set(outer))
    if missing:
        return f"the axis {missing[0]} is missing"
    for letter in inner:
        if letter.upper() not in outer:
            return f"a block splits {letter.upper()}, which is not an axis of it"
    try:
        parse_layout(text)
    except ValueError as error:
        return str(error).removeprefix(f"layout {text!r}: ")
    return None


def target_names(view: SpecReader) -> Iterator[Defect]:
    first = view.names("/targets")
    for target in view.items("/targets"):
        name = view.text(f"{target}/name")
        if name is not None and first[name] != target:
            yield Defect(
                f"{target}/name", f"the name {name!r} is already used at {first[name]}",
                "a name used once", name,
            )  # fmt: skip
        if name == "host":
            yield Defect(
                f"{target}/name", "host is the processor that runs what no target takes",
                "another name", name,
            )  # fmt: skip


TARGET_RULES: tuple[Callable[[SpecReader], Iterator[Defect]], ...] = (
    target_names,
    target_engines,
    dtype_has_engine,
    known_op_types,
    op_limits,
    op_attributes,
    op_conditions,
    op_dtypes,
    buffer_level,
    conversion_dtypes,
    layout_letters,
)
