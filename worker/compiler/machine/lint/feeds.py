"""Rules about dataflows and ports of engines: nothing is accepted that would change no result."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from worker.compiler.machine.lint.targets import COMPUTE
from worker.compiler.machine.lint.view import Defect, SpecReader

_MOVING = ("setup_cycles", "outstanding_bytes")
_PORTS = ("feed_bytes_per_cycle", "drain_bytes_per_cycle")


def dataflows_have_an_array(view: SpecReader) -> Iterator[Defect]:
    for engine, at in _dataflows(view):
        kind = view.text(f"{engine}/kind")
        dimensions = len(list(view.items(f"{engine}/array")))
        if kind != "matrix" or not dimensions:
            yield Defect(
                at, "a dataflow says how an array of multiply-accumulates is fed: "
                + ("the engine has no array" if kind == "matrix" else f"a {kind} engine has none"),
                "absent, or on a matrix engine with an array", kind,
            )  # fmt: skip
        elif (
            view.choice(f"{at}/stationary") != "row"
            and _flag(view, f"{at}/systolic", default=True)
            and dimensions != 2
        ):
            yield Defect(
                f"{at}/systolic", "operands of a systolic array go along rows and columns, but the "
                f"array has {dimensions} dimensions", "false, or an array of two", True,
            )  # fmt: skip


def dataflows_say_what_is_read(view: SpecReader) -> Iterator[Defect]:
    for _, at in _folded(view):
        if view.choice(f"{at}/stationary") == "output":
            for field in ("load_bytes_per_cycle", "accumulator_bytes"):
                if view.raw(f"{at}/{field}") is not None:
                    yield Defect(
                        f"{at}/{field}", "sums are what this array keeps: they begin at nothing "
                        "and need no accumulators, so nothing reads this", "absent",
                        view.number(f"{at}/{field}"),
                    )  # fmt: skip
        has_skew = _flag(view, f"{at}/systolic", default=True)
        if not has_skew and view.raw(f"{at}/pipelined") is not None:
            yield Defect(
                f"{at}/pipelined", "without skew, nothing separates one fold from the next: "
                "nothing reads this", "absent, or systolic: true",
                _flag(view, f"{at}/pipelined", default=False),
            )  # fmt: skip


def folds_are_whole_arrays(view: SpecReader) -> Iterator[Defect]:
    for engine, at in _folded(view):
        hold = [view.number(item) for item in view.items(f"{at}/hold")]
        if not hold:
            continue
        if _flag(view, f"{at}/systolic", default=True):
            yield Defect(
                f"{at}/hold", "a cell of a systolic array holds one element", "absent", None
            )
            continue
        array = [int(view.number(item) or 1) for item in view.items(f"{engine}/array")]
        cells = _kept_cells(array, view.choice(f"{at}/stationary"))
        if len(hold) != 2 or any(not h or h % c for h, c in zip(hold, cells, strict=False)):
            yield Defect(
                f"{at}/hold", "a fold is filled by whole steps of the array along both its axes",
                f"multiples of {cells[0]} and {cells[1]}",
                " x ".join("?" if h is None else f"{h:g}" for h in hold),
            )  # fmt: skip


def sums_stand_in_registers(view: SpecReader) -> Iterator[Defect]:
    """Every core has its own, as its engines have."""
    by_name = view.names("/levels")
    cores = view.number("/num_cores")
    for engine in view.items("/engines"):
        at = f"{engine}/accumulators"
        name, kind = view.text(at), view.text(f"{engine}/kind")
        level = by_name.get(name or "")
        if name is not None and kind not in COMPUTE:
            yield Defect(at, f"a {kind} engine sums nothing up", "absent", name)
        elif level is not None and view.managed(level) != "register":
            yield Defect(
                at, f"sums stand in an engine's registers or in its memory; {name} is neither",
                "a level with managed: register", name,
            )  # fmt: skip
        elif level is not None and cores and view.number(f"{level}/instances") != cores:
            yield Defect(
                f"{level}/instances", f"the engines of each core keep sums in {name}, so each core "
                "has one", f"num_cores = {cores:g}", view.number(f"{level}/instances"),
            )  # fmt: skip


def is_placed_in(view: SpecReader, level: str) -> bool:
    """Whether sums of an engine may stand in a level of registers."""
    name = view.text(f"{level}/name")
    keeping = {view.text(f"{engine}/accumulators") for engine in view.items("/engines")}
    return view.managed(level) == "register" and name in keeping


def ports_are_read(view: SpecReader) -> Iterator[Defect]:
    for engine in view.items("/engines"):
        kind = view.text(f"{engine}/kind")
        for field in _PORTS:
            if view.raw(f"{engine}/{field}") is None:
                continue
            if kind not in COMPUTE:
                yield Defect(
                    f"{engine}/{field}", "a DMA engine moves at the rate of the memories' ports: "
                    "nothing reads this", "absent", view.number(f"{engine}/{field}"),
                )  # fmt: skip
            elif kind == "matrix" and view.raw(f"{engine}/dataflow") is None:
                yield Defect(
                    f"{engine}/{field}", "how often operands pass the port of an array depends on "
                    f"what it keeps: say so at {engine}/dataflow", "absent, or beside a dataflow",
                    view.number(f"{engine}/{field}"),
                )  # fmt: skip


def engine_ports_are_read(view: SpecReader) -> Iterator[Defect]:
    """Engines and transfers meet in a memory that something computes from."""
    computing = [e for e in view.items("/engines") if view.text(f"{e}/kind") in COMPUTE]
    memories = {view.text(f"{engine}/memory") for engine in computing}
    by_name = view.names("/levels")
    for name, level in by_name.items():
        at = f"{level}/engine_ports"
        if view.raw(at) is not None and name not in memories:
            yield Defect(
                at, f"no engine computes from {name}: nothing reads this",
                "absent, or on the memory of a compute engine", view.choice(at),
            )  # fmt: skip
    for engine in computing:
        level = by_name.get(view.text(f"{engine}/memory") or "", "")
        if not level or view.choice(f"{level}/engine_ports") != "shared":
            continue
        share = view.number(f"{level}/sustained_fraction") or 1.0
        for field, way in zip(_PORTS, ("read", "write"), strict=True):
            given = view.number(f"{engine}/{field}")
            port = (view.number(f"{level}/{way}_bytes_per_cycle") or inf) * share
            if given is not None and given > port:
                yield Defect(
                    f"{engine}/{field}", f"no more passes than the port of "
                    f"{view.text(f'{level}/name')} does, which the engine shares with transfers",
                    f"<= {port:g}", given,
                )  # fmt: skip


def transfers_are_read(view: SpecReader) -> Iterator[Defect]:
    for engine in view.items("/engines"):
        if view.text(f"{engine}/kind") not in COMPUTE:
            continue
        for field in _MOVING:
            if view.raw(f"{engine}/{field}") is not None:
                yield Defect(
                    f"{engine}/{field}", "a compute engine issues no transfers: nothing reads this",
                    "absent, or on a DMA engine", view.number(f"{engine}/{field}"),
                )  # fmt: skip


def _dataflows(view: SpecReader) -> Iterator[tuple[str, str]]:
    """(engine, its dataflow) of all that have one."""
    for engine in view.items("/engines"):
        if isinstance(view.raw(f"{engine}/dataflow"), dict):
            yield engine, f"{engine}/dataflow"


def _folded(view: SpecReader) -> Iterator[tuple[str, str]]:
    """Of them those that work fold by fold; the others are `lint/rows.py`'s."""
    for engine, at in _dataflows(view):
        if view.choice(f"{at}/stationary") != "row":
            yield engine, at


def _flag(view: SpecReader, pointer: str, *, default: bool) -> bool:
    raw = view.raw(pointer)
    if isinstance(raw, dict):
        raw = raw.get("value")
    return raw if isinstance(raw, bool) else default


def _kept_cells(array: list[int], stationary: str | None) -> tuple[int, int]:
    """Extents of what the array takes of the kept operand in a step: as `cost/folds.py` has it."""
    if len(array) == 2:
        return array[0], array[1]
    if len(array) == 3:
        rows, columns, depth = array
        kept = {"weight": (depth, columns), "input": (depth, rows)}
        return kept.get(stationary or "", (rows, columns))
    return 1, array[0] if array else 1
