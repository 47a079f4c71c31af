"""Rules about instructions of fixed size: one way to say their cycles, extents that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import prod

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.build_calls import flat_extents
from worker.compiler.machine.lint.view import Defect, SpecReader

_EXTENTS = {
    "matmul": (3, "m, n, k"),
    "conv": (7, "batch, output channels, height, width, kernel height, kernel width, input"
                " channels"),
}  # fmt: skip
_NAMES = frozenset(DType)
_WAYS = (
    ("extents", "cycles"), ("extents", "formula"), ("extents", "oracle"),
    ("extents", "oracle", "granule"), ("table",),
)  # fmt: skip
_MOST_ASKED = 4096
"""Sizes of one instruction that an oracle is asked for, in each format of its engine: the answers
are part of the machine's document, which every bundle has."""


def _calls(view: SpecReader) -> Iterator[tuple[str, str]]:
    """(engine, instruction)."""
    for engine in view.items("/engines"):
        for intrinsic in view.items(f"{engine}/intrinsics"):
            yield engine, intrinsic


def _sizes(view: SpecReader, intrinsic: str) -> Iterator[str]:
    """Pointers of the parts of an instruction that have extents."""
    own = (intrinsic,) if view.raw(f"{intrinsic}/extents") is not None else ()
    return chain(own, view.items(f"{intrinsic}/table"))


def one_way_to_say_cycles(view: SpecReader) -> Iterator[Defect]:
    for _, intrinsic in _calls(view):
        fields = ("extents", "cycles", "formula", "oracle", "granule", "table")
        given = tuple(f for f in fields if view.raw(f"{intrinsic}/{f}") is not None)
        if given not in _WAYS:
            yield Defect(
                intrinsic, "an instruction says its cycles in one way, this one by "
                f"{', '.join(given) or 'nothing'}",
                "extents with cycles, extents with a formula, extents (and a granule) with an"
                " oracle, or a table",
                ", ".join(given) or None,
            )  # fmt: skip


def formulas_take_time(view: SpecReader) -> Iterator[Defect]:
    for _, intrinsic in _calls(view):
        formula = f"{intrinsic}/formula"
        terms = view.keys(formula)
        numbers = [view.number(f"{formula}/{term}") or 0.0 for term in terms]
        if view.raw(formula) is not None and not any(number > 0 for number in numbers):
            yield Defect(
                formula, "by this formula a call takes no time",
                "at least one term > 0 of 1, m, n, k and their products", ", ".join(terms) or None,
            )  # fmt: skip


def extents_by_kind(view: SpecReader) -> Iterator[Defect]:
    for _, intrinsic in _calls(view):
        op = view.text(f"{intrinsic}/op") or ""
        if op not in _EXTENTS:
            continue
        wanted, names = _EXTENTS[op]
        for size in _sizes(view, intrinsic):
            num = len(list(view.items(f"{size}/extents")))
            if num != wanted:
                yield Defect(
                    f"{size}/extents", f"a {op} intrinsic has the extents {names}",
                    f"{wanted} extents", num,
                )  # fmt: skip


def calls_fit_their_memory(view: SpecReader) -> Iterator[Defect]:
    """Operands of a call stand in the memory of its engine, in the narrowest format it has."""
    levels = view.names("/levels")
    for engine, intrinsic in _calls(view):
        level = levels.get(view.text(f"{engine}/memory") or "")
        capacity = None if level is None else view.number(f"{level}/capacity_bytes")
        formats = [DType(f) for f in view.keys(f"{engine}/macs_per_cycle") if f in _NAMES]
        if capacity is None or not formats:
            continue
        item = min(dtype.size_bytes for dtype in formats)
        for size in _sizes(view, intrinsic):
            extents = [view.number(e) or 0.0 for e in view.items(f"{size}/extents")]
            elems = _operand_elems(view.text(f"{intrinsic}/op"), extents)
            if elems * item > capacity:
                name = view.text(f"{level}/name")
                yield Defect(
                    f"{size}/extents", f"the operands of a call take {elems * item:.0f} bytes, but "
                    f"{name} has {capacity:.0f}", f"operands of at most {capacity:.0f} bytes",
                    elems * item,
                )  # fmt: skip


def _operand_elems(op: str | None, extents: list[float]) -> float:
    """Elements of the operands and the result of a call, without the halo of a window."""
    match op, extents:
        case "matmul", [m, n, k]:
            return m * k + k * n + m * n
        case "conv", [batch, out, height, width, tall, wide, inner]:
            pixels = batch * height * width
            return pixels * inner + out * tall * wide * inner + pixels * out
        case "elementwise", [*points]:
            total = 1.0
            for extent in points:
                total *= extent
            return 2 * total
        case _:
            return 0.0


def granules_divide_the_asking(view: SpecReader) -> Iterator[Defect]:
    """Steps are as many as the extents, none is longer than its own, and they leave few sizes."""
    for _, intrinsic in _calls(view):
        steps = [view.number(e) or 0.0 for e in view.items(f"{intrinsic}/granule")]
        extents = [view.number(e) or 0.0 for e in view.items(f"{intrinsic}/extents")]
        if not steps or not extents:
            continue
        if len(steps) != len(extents):
            yield Defect(
                f"{intrinsic}/granule", "a granule has a step for every extent",
                f"{len(extents)} steps", len(steps),
            )  # fmt: skip
            continue
        for k, (step, extent) in enumerate(zip(steps, extents, strict=True)):
            if step > extent:
                yield Defect(
                    f"{intrinsic}/granule/{k}", "a step is longer than its extent",
                    f"at most {extent:.0f}", step,
                )  # fmt: skip
        op = view.text(f"{intrinsic}/op") or ""
        if len(extents) != _EXTENTS.get(op, (len(extents), ""))[0]:
            continue
        whole, step_of = (flat_extents(op, _whole(sizes)) for sizes in (extents, steps))
        asked = prod(-(-e // max(1, s)) for e, s in zip(whole, step_of, strict=True))
        if asked > _MOST_ASKED:
            yield Defect(
                f"{intrinsic}/granule", f"an oracle would be asked for {asked} sizes",
                f"at most {_MOST_ASKED}: longer steps, or an instruction for each kind of size",
                asked,
            )  # fmt: skip


def calls_of_a_library_are_products(view: SpecReader) -> Iterator[Defect]:
    for _, intrinsic in _calls(view):
        symbol = view.text(f"{intrinsic}/call")
        if symbol is not None and view.text(f"{intrinsic}/op") == "elementwise":
            yield Defect(
                f"{intrinsic}/call", "kernel libraries have products, and this is element-wise",
                "an op matmul or conv, or no call", symbol,
            )  # fmt: skip


def _whole(sizes: list[float]) -> tuple[int, ...]:
    return tuple(max(1, int(size)) for size in sizes)


CALL_RULES: tuple[Callable[[SpecReader], Iterator[Defect]], ...] = (
    one_way_to_say_cycles,
    formulas_take_time,
    extents_by_kind,
    calls_fit_their_memory,
    granules_divide_the_asking,
    calls_of_a_library_are_products,
)
