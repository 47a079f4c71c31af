"""Rules about what the fields of a hardware document say of each other, one function a rule.

Every rule reads the resolved document through `SpecReader`, which gives None for what is missing or
of the wrong type: the schema reports that, and the rules still run, so that a user sees all
findings at once.  A rule yields `Defect`s; lint.py turns pointers and messages into findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.lint.calls import CALL_RULES
from worker.compiler.machine.lint.feeds import (
    dataflows_have_an_array,
    dataflows_say_what_is_read,
    engine_ports_are_read,
    folds_are_whole_arrays,
    is_placed_in,
    ports_are_read,
    sums_stand_in_registers,
    transfers_are_read,
)
from worker.compiler.machine.lint.mesh import MESH_RULES
from worker.compiler.machine.lint.rates import (
    rates_of_compute_engines,
    special_rates_are_read,
    stages_of_vector_engines,
)
from worker.compiler.machine.lint.rows import ROW_RULES
from worker.compiler.machine.lint.targets import TARGET_RULES, places
from worker.compiler.machine.lint.view import Defect, SpecReader, one_of

__all__ = ["RULES", "Defect", "SpecReader"]
_ENGINE_LEVELS = ("memory", "accumulators")


def unique_names(view: SpecReader) -> Iterator[Defect]:
    for pointer in ("/levels", "/engines", "/links"):
        first = view.names(pointer)
        for item in view.items(pointer):
            name = view.text(f"{item}/name")
            if name is not None and first[name] != item:
                yield Defect(
                    f"{item}/name", f"the name {name!r} is already used at {first[name]}",
                    "a name used once", name,
                )  # fmt: skip


def known_levels(view: SpecReader) -> Iterator[Defect]:
    levels = list(view.names("/levels"))
    places = [(f"{e}/{k}", "engine") for e in view.items("/engines") for k in _ENGINE_LEVELS]
    places += [(f"{k}/{end}", "link") for k in view.items("/links") for end in ("src", "dst")]
    for pointer, what in places:
        name = view.text(pointer)
        if name is not None and name not in levels:
            yield Defect(
                pointer, f"the {what} names memory level {name!r}, which does not exist"
                + one_of(name, levels), f"one of {', '.join(levels)}", name,
            )  # fmt: skip


def links_between_levels(view: SpecReader) -> Iterator[Defect]:
    for link in view.items("/links"):
        src, dst = view.text(f"{link}/src"), view.text(f"{link}/dst")
        if src is not None and src == dst and view.text(f"{link}/kind") != "noc":
            yield Defect(
                f"{link}/dst", f"the link goes from {src} to itself; only a noc joins instances "
                "of one level", "another level, or kind noc", dst,
            )  # fmt: skip


def counts_divide(view: SpecReader) -> Iterator[Defect]:
    cores = view.number("/num_cores")
    if not cores:
        return
    clusters = view.number("/num_clusters")
    if clusters and cores % clusters:
        yield Defect(
            "/num_clusters", f"{clusters:g} clusters cannot share {cores:g} cores evenly",
            f"a divisor of num_cores = {cores:g}", clusters,
        )  # fmt: skip
    for level in view.items("/levels"):
        instances = view.number(f"{level}/instances")
        if instances and cores % instances:
            yield Defect(
                f"{level}/instances",
                f"{instances:g} instances cannot be shared evenly by {cores:g} cores",
                f"a divisor of num_cores = {cores:g}", instances,
            )  # fmt: skip


def multicast_links_serve_several(view: SpecReader) -> Iterator[Defect]:
    """Loads end at the faster level of a link, those through a noc in one cluster."""
    levels = view.names("/levels")
    order = list(levels)
    clusters = view.number("/num_clusters") or 1
    for link in view.items("/links"):
        ends = {view.text(f"{link}/src"), view.text(f"{link}/dst")}
        if not view.flag(f"{link}/multicast") or not ends.issubset(order):
            continue
        faster = max(map(str, ends), key=order.index)
        instances = view.number(f"{levels[faster]}/instances")
        joined = (instances or 0) / (clusters if len(ends) == 1 else 1)
        if instances is not None and joined < 2:
            yield Defect(
                f"{link}/multicast",
                f"multicast changes nothing at {view.text(f'{link}/name')}: a transfer over it "
                f"reaches one instance of {faster}",
                "absent, or a link to a level with several instances (of a noc: in a cluster)",
                True,
            )  # fmt: skip


def capacity_holds_an_element(view: SpecReader) -> Iterator[Defect]:
    named = [
        view.text(item) for p in places(view) for item in view.items(f"{p.capabilities}/dtypes")
    ]
    dtypes = [d for d in named if d is not None and d in list(DType)]
    widest = max(dtypes, key=lambda d: DType(d).size_bytes, default=None)
    for level in view.items("/levels"):
        capacity = view.number(f"{level}/capacity_bytes")
        if capacity is None or capacity <= 0:
            continue
        usable = capacity * (1 - (view.number(f"{level}/reserve_fraction") or 0.0))
        if widest is not None and usable < DType(widest).size_bytes:
            size = DType(widest).size_bytes
            yield Defect(
                f"{level}/capacity_bytes",
                f"{usable:g} usable bytes cannot hold one {widest} element of {size} bytes",
                f">= {size}", capacity,
            )  # fmt: skip
        align = view.number(f"{level}/align_bytes")
        if align and align >= 1 and (align > capacity or int(align) & (int(align) - 1)):
            yield Defect(
                f"{level}/align_bytes",
                f"alignment {align:g} is not a power of two inside {capacity:g} bytes",
                "a power of two <= capacity_bytes", align,
            )  # fmt: skip


def levels_in_order(view: SpecReader) -> Iterator[Defect]:
    """Slow to fast: instances never fall, and the capacity of one instance never grows.

    Register levels are exempt from the second half: a GPU's register file outsizes its scratchpad.
    """
    placed = list(view.items("/levels"))
    for before, after in pairwise(placed):
        a, b = view.number(f"{before}/instances"), view.number(f"{after}/instances")
        if a and b and b < a:
            slow, fast = view.text(f"{before}/name"), view.text(f"{after}/name")
            yield Defect(
                f"{after}/instances",
                f"levels go from slow and shared to fast and private, but {fast} has fewer "
                f"instances than {slow} before it", f">= {a:g}", b,
            )  # fmt: skip
    memories = [level for level in placed if view.managed(level) != "register"]
    for before, after in pairwise(memories):
        a, b = view.number(f"{before}/capacity_bytes"), view.number(f"{after}/capacity_bytes")
        if a and b and b > a:
            yield Defect(
                f"{after}/capacity_bytes",
                f"levels are out of order: {view.text(after + '/name')} is larger than "
                f"{view.text(before + '/name')}, which is listed as slower",
                f"<= {a:g}", b,
            )  # fmt: skip


def home_is_a_scratchpad(view: SpecReader) -> Iterator[Defect]:
    if view.managed("/levels/0") != "scratchpad":
        yield Defect(
            "/levels/0/managed", "the first level is the home of whole tensors", "scratchpad",
            view.managed("/levels/0"),
        )  # fmt: skip
    instances = view.number("/levels/0/instances")
    if instances and instances != 1:
        yield Defect(
            "/levels/0/instances", "the home level is one address space: give its channels as "
            "bandwidth", "1", instances,
        )  # fmt: skip


def duplex_where_transfers_end(view: SpecReader) -> Iterator[Defect]:
    """What passes a cache takes its read port in either direction, and registers that nothing is
    placed in have no ports."""
    for level in view.items("/levels"):
        managed = view.managed(level)
        if is_placed_in(view, level):
            continue
        if managed != "scratchpad" and view.raw(f"{level}/duplex") is not None:
            why = (
                "what passes a cache takes one port in either direction"
                if managed == "cache"
                else "transfers do not reach registers"
            )
            yield Defect(
                f"{level}/duplex",
                f"duplex changes nothing at {view.text(f'{level}/name')}, a {managed}: {why}",
                "absent, or a level that is a scratchpad", view.choice(f"{level}/duplex"),
            )  # fmt: skip


def sustained_where_bytes_pass(view: SpecReader) -> Iterator[Defect]:
    for level in view.items("/levels"):
        if is_placed_in(view, level):
            continue
        if view.managed(level) == "register" and view.raw(f"{level}/sustained_fraction"):
            yield Defect(
                f"{level}/sustained_fraction", "transfers do not reach registers: nothing reads "
                "this", "absent", view.number(f"{level}/sustained_fraction"),
            )  # fmt: skip


def bursts_where_they_are_read(view: SpecReader) -> Iterator[Defect]:
    """Home and caches see tensors as they lie; what a scratchpad holds is packed."""
    for number, level in enumerate(view.items("/levels")):
        if number and view.managed(level) != "cache" and view.raw(f"{level}/burst_bytes"):
            yield Defect(
                f"{level}/burst_bytes",
                f"tiles lie in {view.text(f'{level}/name')} without gaps: nothing reads this",
                "absent, or on the first level or a cache", view.number(f"{level}/burst_bytes"),
            )  # fmt: skip


def has_scratchpad(view: SpecReader) -> Iterator[Defect]:
    levels = list(view.items("/levels"))
    if len(levels) > 1 and not any(view.managed(level) == "scratchpad" for level in levels[1:]):
        yield Defect(
            "/levels", "there is no scratchpad below the home level to compute from",
            "at least one level after the first with managed: scratchpad", None,
        )  # fmt: skip


def a_gap_is_within_the_latency(view: SpecReader) -> Iterator[Defect]:
    for at in ("", *view.items("/targets")):
        latency = view.number(f"{at}/launch_latency_cycles")
        if latency is None:
            latency = view.number("/launch_latency_cycles")
        gap = view.number(f"{at}/launch_gap_cycles")
        if gap is not None and latency is not None and gap > latency:
            yield Defect(
                f"{at}/launch_gap_cycles",
                f"a kernel that is queued already starts {gap:g} cycles after the one before it, "
                f"later than the {latency:g} that it takes to start on an idle device",
                f"<= launch_latency_cycles = {latency:g}", gap,
            )  # fmt: skip


def has_engines(view: SpecReader) -> Iterator[Defect]:
    kinds = {view.text(f"{engine}/kind") for engine in view.items("/engines")}
    needs = {
        "vector": "element-wise operators run on it",
        "dma_in": "it brings tensors towards the core",
        "dma_out": "it takes results away from the core",
    }
    for kind, why in needs.items():
        if kinds and kind not in kinds:
            yield Defect(
                "/engines", f"there is no {kind} engine; {why}", f"an engine of kind {kind}"
            )


def engines_sit_at_scratchpads(view: SpecReader) -> Iterator[Defect]:
    by_name = view.names("/levels")
    for engine in view.items("/engines"):
        name = view.text(f"{engine}/memory")
        level = by_name.get(name or "")
        if level is not None and (level == "/levels/0" or view.managed(level) != "scratchpad"):
            yield Defect(
                f"{engine}/memory", f"an engine works in a scratchpad below the home level, not in "
                f"{name}", "a scratchpad level after the first", name,
            )  # fmt: skip


def one_way_to_give_targets(view: SpecReader) -> Iterator[Defect]:
    given = [key for key in ("capabilities", "targets") if view.raw(f"/{key}")]
    if len(given) != 1:
        yield Defect(
            f"/{given[-1] if given else 'capabilities'}",
            "both capabilities and targets are given" if given else "no accelerator is described",
            "capabilities (one accelerator) or targets (several), not both",
            ", ".join(given) or None,
        )


RULES: tuple[Callable[[SpecReader], Iterator[Defect]], ...] = (
    unique_names,
    known_levels,
    links_between_levels,
    multicast_links_serve_several,
    counts_divide,
    capacity_holds_an_element,
    levels_in_order,
    home_is_a_scratchpad,
    duplex_where_transfers_end,
    has_scratchpad,
    a_gap_is_within_the_latency,
    has_engines,
    engines_sit_at_scratchpads,
    sums_stand_in_registers,
    rates_of_compute_engines,
    special_rates_are_read,
    stages_of_vector_engines,
    *CALL_RULES,
    dataflows_have_an_array,
    dataflows_say_what_is_read,
    folds_are_whole_arrays,
    *ROW_RULES,
    ports_are_read,
    engine_ports_are_read,
    transfers_are_read,
    bursts_where_they_are_read,
    sustained_where_bytes_pass,
    one_way_to_give_targets,
    *TARGET_RULES,
    *MESH_RULES,
)
