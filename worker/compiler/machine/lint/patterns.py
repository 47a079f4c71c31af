"""Rules about pattern tables: what the places of a pattern say of each other and of the table.

Fragments are judged as if written out where they are used; a defect that only shows there points
at the `use`.  Tables of `/capabilities` and of every `/targets/k/capabilities` are read alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from worker.compiler.machine.lint.attributes import attribute_defects
from worker.compiler.machine.lint.places import (
    MAX_DEPTH,
    MAX_PLACES,
    PatternPlace,
    Table,
    number_pairs,
    pattern_tables,
)
from worker.compiler.machine.lint.view import Defect, SpecReader, one_of
from worker.compiler.machine.operator import is_foreign
from worker.compiler.machine.presets import known_ops

_FORMS = ("op", "any", "alternatives", "same_as", "path", "use")
_VALUE_FIELDS = ("dtypes", "rank", "shape", "uses")
_FIELDS_OF_FORM = {
    "op": ("inputs", "attributes", "commutative", "optional", "through", "bind", *_VALUE_FIELDS),
    "any": ("bind", "constant", *_VALUE_FIELDS),
    "alternatives": (),
    "same_as": (),
    "path": ("to", "max_nodes"),
    "use": (),
}


def _places(view: SpecReader) -> Iterator[PatternPlace]:
    for table in pattern_tables(view):
        for row in table.rows:
            yield from table.match(row).walk()


def one_form_per_place(view: SpecReader) -> Iterator[Defect]:
    for place in _places(view):
        given = place.forms()
        if len(given) != 1:
            said = "says nothing" if not given else f"is {' and '.join(given)} at once"
            yield Defect(
                place.pointer, f"a place of a pattern {said}",
                f"exactly one of {', '.join(_FORMS)}", ", ".join(given) or None,
            )  # fmt: skip


def fields_fit_the_form(view: SpecReader) -> Iterator[Defect]:
    for place in _places(view):
        given = place.forms()
        if len(given) != 1:
            continue
        (form,) = given
        allowed = _FIELDS_OF_FORM[form]
        for key in place.fields():
            if key == form or key in allowed or key in _FORMS or not place.is_set(key):
                continue
            fields = ", ".join(allowed) or "nothing else"
            why = "; the result of an operator is never one" if key == "constant" else ""
            yield Defect(
                f"{place.pointer}/{key}", f"{key} means nothing beside {form}{why}",
                f"beside {form}: {fields}", key,
            )  # fmt: skip
        if form == "path" and not place.is_set("to"):
            yield Defect(
                place.pointer, "a path needs the pattern it leads back to", "path with to", None
            )


def known_pattern_ops(view: SpecReader) -> Iterator[Defect]:
    names = sorted(known_ops())
    for place in _places(view):
        for pointer, name in place.op_types():
            if name not in known_ops() and not is_foreign(name):
                yield Defect(
                    pointer, f"{name!r} is not an operator of ONNX" + one_of(name, names),
                    "an op type of the ai.onnx domain, or domain::OpType of another", name,
                )  # fmt: skip


def pattern_attributes(view: SpecReader) -> Iterator[Defect]:
    for place in _places(view):
        op_types = [name for _, name in place.op_types()] if place.is_set("op") else []
        if op_types:
            yield from attribute_defects(view, f"{place.pointer}/attributes", op_types)


def unique_pattern_names(view: SpecReader) -> Iterator[Defect]:
    for table in pattern_tables(view):
        first: dict[str, str] = {}
        for row in table.rows:
            name = view.text(f"{row}/name")
            if name is not None and first.setdefault(name, row) != row:
                yield Defect(
                    f"{row}/name", f"the name {name!r} is already used at {first[name]}",
                    "a name used once in the table", name,
                )  # fmt: skip


def fragments_exist(view: SpecReader) -> Iterator[Defect]:
    for table in pattern_tables(view):
        for row in table.rows:
            for place in table.match(row).walk():
                name = place.text("use")
                if name is not None and name not in table.row_of:
                    names = list(table.row_of)
                    yield Defect(
                        f"{place.pointer}/use",
                        f"there is no pattern {name!r} in this table" + one_of(name, names),
                        f"one of {', '.join(names)}", name,
                    )  # fmt: skip


def fragments_end(view: SpecReader) -> Iterator[Defect]:
    """No pattern contains itself, and none becomes too large when it is written out."""
    for table in pattern_tables(view):
        for row in table.rows:
            cycle = table.cycle(row)
            if cycle is not None:
                pointer, names = cycle
                yield Defect(
                    pointer, f"the pattern contains itself: {' -> '.join(names)}",
                    "fragments that do not lead back", names[-1],
                )  # fmt: skip
                continue
            size = table.size(row)
            if size > MAX_PLACES:
                yield Defect(
                    f"{row}/match", f"with its fragments written out the pattern has {size} places",
                    f"at most {MAX_PLACES} places", size,
                )  # fmt: skip
            depth = table.depth(row)
            if depth > MAX_DEPTH:
                yield Defect(
                    f"{row}/match",
                    f"with its fragments written out the pattern is {depth} places deep",
                    f"at most {MAX_DEPTH} places inside one another", depth,
                )  # fmt: skip


def names_are_bound_once(view: SpecReader) -> Iterator[Defect]:
    for table in pattern_tables(view):
        for row in table.rows:
            if table.is_sound(row):
                for pointer, name, first in table.bound_twice(row):
                    yield Defect(
                        pointer, f"{name!r} is already bound at {first}",
                        "each name bound once on every way through the pattern", name,
                    )  # fmt: skip


def repeated_values_are_bound(view: SpecReader) -> Iterator[Defect]:
    for table in pattern_tables(view):
        for row in table.rows:
            if view.raw(f"{row}/fragment") is True or not table.is_sound(row):
                continue
            bound = sorted(table.bound(row))
            for pointer, name in table.asked(row):
                if name not in bound:
                    yield Defect(
                        pointer, f"nothing in the pattern is bound to {name!r}"
                        + one_of(name, bound),
                        f"one of {', '.join(bound)}" if bound else "a name given by bind", name,
                    )  # fmt: skip


def operands_are_there(view: SpecReader) -> Iterator[Defect]:
    for place in _places(view):
        num = len(place.children("inputs"))
        if place.raw("commutative") is True and num < 2:
            yield Defect(
                f"{place.pointer}/commutative", "commutative is about the first two inputs, but "
                f"the pattern gives {num}", "two inputs or more (any stands for any value)", num,
            )  # fmt: skip
        through = place.raw("through")
        if place.raw("optional") is True and "op" in place.forms():
            k = through if isinstance(through, int) else 0
            if not 0 <= k < num:
                key = "optional" if through is None else "through"
                yield Defect(
                    f"{place.pointer}/{key}", f"input {k} is to stand in for the absent node, but "
                    f"the pattern gives {num} inputs", f"an input from 0 to {num - 1}" if num
                    else "inputs that say what stands there without the node", k,
                )  # fmt: skip
        elif through is not None:
            yield Defect(
                f"{place.pointer}/through", "through says what stands in for an optional node; "
                "this one is not optional", "optional: true beside it", through,
            )  # fmt: skip


def roots_are_nodes(view: SpecReader) -> Iterator[Defect]:
    """The last node of a composite is always there."""
    for table in pattern_tables(view):
        for row in table.rows:
            if view.raw(f"{row}/fragment") is True or not table.is_sound(row):
                continue
            for pointer, place in table.roots(row):
                if "op" in place.forms() and place.raw("optional") is True:
                    at = f"{pointer}/optional" if pointer == place.pointer else pointer
                    yield Defect(
                        at, "the last node of a composite cannot be optional",
                        "a root that is always there; give the shorter pattern its own row", True,
                    )  # fmt: skip
                elif {"any", "same_as"} & set(place.forms()):
                    yield Defect(
                        pointer, "the last node of a composite must be an operator",
                        "op, or alternatives and paths that begin with op", None,
                    )  # fmt: skip


def pattern_limits_make_sense(view: SpecReader) -> Iterator[Defect]:
    for place in _places(view):
        for pointer in number_pairs(view, place):
            low, high = view.number(f"{pointer}/min"), view.number(f"{pointer}/max")
            if low is not None and high is not None and low > high:
                yield Defect(
                    f"{pointer}/max", f"the maximum {high:g} is below the minimum {low:g}",
                    f">= {low:g}", high,
                )  # fmt: skip


def intrinsics_exist(view: SpecReader) -> Iterator[Defect]:
    for table in pattern_tables(view):
        offered = [
            name
            for engine in view.items("/engines")
            if table.may_use(view.text(f"{engine}/name"))
            for name in view.names(f"{engine}/intrinsics")
        ]
        for row in table.rows:
            name = view.text(f"{row}/intrinsic")
            if name is not None and name not in offered:
                who = f"target {table.target}" if table.target else "the machine"
                known = f"one of {', '.join(offered)}" if offered else "an intrinsic of an engine"
                yield Defect(
                    f"{row}/intrinsic", f"no engine of {who} has an intrinsic {name!r}"
                    + one_of(name, offered), known, name,
                )  # fmt: skip


def intrinsics_have_one_owner(view: SpecReader) -> Iterator[Defect]:
    """An instruction is issued by one target: two that claim it would share its engine unseen."""
    claimed: dict[str, Table] = {}
    for table in pattern_tables(view):
        for row in table.rows:
            name = view.text(f"{row}/intrinsic")
            if name is None:
                continue
            owner = claimed.setdefault(name, table)
            if owner.pointer != table.pointer:
                yield Defect(
                    f"{row}/intrinsic", f"the intrinsic {name!r} is already claimed by target "
                    f"{owner.target or owner.pointer}", "an intrinsic of one target", name,
                )  # fmt: skip


PATTERN_RULES: tuple[Callable[[SpecReader], Iterator[Defect]], ...] = (
    one_form_per_place,
    fields_fit_the_form,
    known_pattern_ops,
    pattern_attributes,
    unique_pattern_names,
    fragments_exist,
    fragments_end,
    names_are_bound_once,
    repeated_values_are_bound,
    operands_are_there,
    roots_are_nodes,
    pattern_limits_make_sense,
    intrinsics_exist,
    intrinsics_have_one_owner,
)
