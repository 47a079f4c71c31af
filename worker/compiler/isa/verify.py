"""Legality of a UnitProgram: what every consumer may rely on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.loops import STRIDE, last_counters, nesting, runs_of
from worker.compiler.isa.program import (
    PASSED,
    Opcode,
    UnitProgram,
    expanded,
    hop_cycles,
    passed,
    steps_of,
    widths,
)
from worker.compiler.isa.verify_ways import check_way, check_ways
from worker.compiler.machine.bursts import burst_units, counted_at
from worker.compiler.machine.dma import is_limited, issuing
from worker.compiler.machine.engine_ports import ENGINE_WAYS, serves_an_engine
from worker.compiler.machine.links import meshes, num_ports_of
from worker.compiler.machine.machine import Machine, Managed

_TRANSFERS = (Opcode.LOAD, Opcode.STORE, Opcode.COPY, Opcode.MULTICAST, Opcode.PUSH, Opcode.POP)

_MOST_RUNS = 1 << 50
_FARTHEST = 1 << 60
_WIDEST = max(dtype.size_bytes for dtype in DType)


def verify_program(unit: UnitProgram, machine: Machine) -> None:
    """Check `unit` against `machine`.

    Rules: indices in range; buffers inside their level's arena, aligned, and large enough for their
    tile; offsets inside buffers and operands; transfers name ports, and take of their engine what
    issuing them takes; computes name those that their engine shares with transfers, as far as they
    draw or return, and no other; what crosses a mesh names the way from its source to all it
    serves; every wait is on a token signalled by an earlier instruction; only multicasts serve
    several cores; loops nest, and all this holds in every iteration.
    Raises:
        VerifyError: the first broken rule, with the instruction or buffer.
    Cost: linear in rows, and in iterations of loops over cores.
    """
    _check_tables(unit, machine)
    check_loops(unit)
    _check_instructions(unit)
    _check_issuing(unit, machine)
    _check_bursts(unit, machine)
    _check_lists(unit)
    once = _once(unit)
    _check_receivers(once, machine)
    _check_engine_ports(once, machine)
    check_ways(once, machine)
    _check_tokens(once)


def _fail(place: str, rule: str, message: str) -> VerifyError:
    return VerifyError("lower", place, rule, message)


def _check_tables(unit: UnitProgram, machine: Machine) -> None:
    levels = {level.name: level for level in machine.levels}
    engines = {engine.name for engine in machine.engines}
    links = {link.name for link in machine.links}
    home = machine.home.name
    is_cached = any(level.managed is Managed.CACHE for level in machine.levels)
    for k, buffer in enumerate(unit.buffers):
        place = f"buffer {k}"
        if buffer.level not in levels:
            raise _fail(place, "level", f"no level {buffer.level!r}")
        level = levels[buffer.level]
        end = buffer.address + buffer.size_bytes
        if buffer.address < 0 or end > level.usable_bytes:
            raise _fail(
                place, "arena", f"[{buffer.address}, {end}) leaves {level.usable_bytes} bytes"
            )
        if buffer.address % level.align_bytes or buffer.slot_bytes % level.align_bytes:
            raise _fail(place, "alignment", f"not aligned to {level.align_bytes} bytes")
        if prod(buffer.extents) * DType(buffer.dtype).size_bytes > buffer.slot_bytes:
            raise _fail(place, "size", f"tile {buffer.extents} exceeds {buffer.slot_bytes} bytes")
        if buffer.copies < 1 or buffer.blocks < 1 or buffer.block_stride < 1:
            raise _fail(place, "copies", "copies, blocks and block_stride must be >= 1")
    for k, stream in enumerate(unit.streams):
        if stream.engine not in engines or not 0 <= stream.core < machine.num_cores:
            raise _fail(f"stream {k}", "engine", f"no {stream.engine!r} in core {stream.core}")
    for k, resource in enumerate(unit.resources):
        if resource.level not in (links if resource.direction == "link" else levels):
            raise _fail(f"resource {k}", "level", f"no level or link {resource.level!r}")
        is_half = resource.direction != "link" and levels[resource.level].half_duplex
        if resource.half_duplex != is_half:
            shared = "one port" if is_half else "no port"
            raise _fail(
                f"resource {k}", "duplex", f"{resource.level} shares {shared} between directions"
            )
        ports = "bytes"
        if resource.direction != "link":
            ports = counted_at(levels[resource.level], machine)
        is_engines = serves_an_engine(resource.level, resource.counted, machine) and (
            resource.direction == ENGINE_WAYS.get(resource.counted)
        )
        if resource.counted != ports and not is_engines:
            raise _fail(
                f"resource {k}", "counted",
                f"ports of {resource.level} count {ports}, not {resource.counted}",
            )  # fmt: skip
        if resource.bytes_per_cycle <= 0:
            raise _fail(f"resource {k}", "rate", "bandwidth must be positive")
        may_share = is_cached and (resource.level, resource.direction) == (home, "read")
        if not 1 <= resource.sharers <= (machine.num_cores if may_share else 1):
            raise _fail(
                f"resource {k}", "sharers",
                f"{resource.sharers} transfers bring the same bytes through {resource.level}"
                f" {resource.direction}: "
                + (f"there are {machine.num_cores} cores" if may_share else "nothing holds them"),
            )  # fmt: skip
        if resource.count < 1 or resource.step < 1:
            raise _fail(
                f"resource {k}", "count",
                f"no {resource.count} ports at a distance of {resource.step}",
            )  # fmt: skip
        if resource.direction != "link":
            instances = num_ports_of(levels[resource.level], machine)
            if not 0 <= resource.instance <= resource.instances[-1] < instances:
                raise _fail(
                    f"resource {k}", "instance",
                    f"{resource.instances[-1]} is none of the {instances} of {resource.level}",
                )  # fmt: skip
        else:
            check_way(f"resource {k}", resource, machine)


def check_loops(unit: UnitProgram) -> None:
    """Loops nest, and the fields that step in them stay in their tables.

    Raises:
        VerifyError: the first that does not.
    """
    loops = unit.loops
    if not len(loops.table):
        return
    try:
        depths = nesting(loops.table)
    except ValueError as error:
        raise _fail("loops", "nesting", str(error)) from error
    shape = (max(depths) + 1,)
    listed = unit.num_rows, len(unit.wait_token), len(unit.signal_token)
    for name, array, count in zip(
        ("stride", "wait_stride", "signal_stride"),
        (loops.stride, loops.wait_stride, loops.signal_stride), listed, strict=True,
    ):  # fmt: skip
        if array.shape != (count, *shape):
            raise _fail("loops", name, f"has the shape {array.shape}, not {(count, *shape)}")
    if max(end for _, end, _ in loops.table.tolist()) > unit.num_rows:
        raise _fail("loops", "rows", f"a loop leaves the {unit.num_rows} rows")
    work = runs_of(loops.table, depths)
    if work >= _MOST_RUNS:
        raise _fail("loops", "trips", f"{work} iterations are more than can be counted")
    tables = (("stream", len(unit.streams)), ("resource", len(unit.resources)))
    for rows in _extreme_rows(unit):
        for name, size in tables:
            used = rows[name] if name == "stream" else rows[name][unit.instructions[name] >= 0]
            if used.size and not 0 <= used.min() <= used.max() < size:
                raise _fail("loops", name, f"a loop steps outside the {size} of its {name}s")
    for name, pointer, tokens, stride in (
        ("wait", unit.wait_ptr, unit.wait_token, loops.wait_stride),
        ("signal", unit.signal_ptr, unit.signal_token, loops.signal_stride),
    ):
        last = np.repeat(last_counters(loops), np.diff(pointer), axis=0)
        steps = stride.astype(np.float64) * last  # exact up to far beyond any table
        least, most = (tokens + pick(steps, 0).sum(axis=1) for pick in (np.minimum, np.maximum))
        if len(tokens) and (least.min() < 0 or most.max() >= unit.num_tokens):
            raise _fail("loops", name, f"a loop steps outside the {unit.num_tokens} tokens")


def _check_instructions(unit: UnitProgram) -> None:
    rows = unit.instructions
    if not len(rows):
        return
    if len(unit.loops.table):
        for rows in _extreme_rows(unit):
            _check_rows(unit, rows)
    else:
        _check_rows(unit, rows)


def _check_issuing(unit: UnitProgram, machine: Machine) -> None:
    """Transfers keep their engine as long as it needs to issue them (`machine/dma.py`)."""
    rows = unit.instructions
    is_transfer = np.isin(rows["opcode"], [int(o) for o in _TRANSFERS])
    names = np.array([stream.engine for stream in unit.streams])
    rates = np.array([r.payload_per_cycle for r in unit.resources] + [np.inf])
    sizes, column = passed(rows, unit.resources)
    through = sizes[np.append(column, 0)[rows["resource"]], np.arange(len(rows))[:, None]]
    ports = np.ceil(through / rates[rows["resource"]]).max(axis=1, initial=0.0)
    levels = {level.latency_cycles for level in machine.levels}
    links = {link.latency_cycles for link in machine.links if link.mesh is None}
    ways = np.array(sorted(levels | links | {0}))
    hops = hop_cycles(unit.resources, meshes(machine))[rows["resource"]].sum(axis=1)
    for engine in filter(is_limited, machine.engines):
        mine = np.flatnonzero(is_transfer & (names == engine.name)[rows["stream"]])
        taken, seen = (rows[name][mine][:, None] for name in ("cycles", "latency"))
        busy, late = issuing(
            engine, rows["bytes"][mine][:, None], ways + hops[mine][:, None],
            ports.astype(np.int64)[mine][:, None],
        )  # fmt: skip
        is_one = (taken == busy) & (seen == ways + late)
        wrong = np.zeros(len(rows), dtype=np.bool_)
        wrong[mine[~is_one.any(axis=1)]] = True
        _refuse(wrong, "cycles", f"not what {engine.name} takes to issue it on any way")
    free = [k for k, s in enumerate(unit.streams) if not is_limited(machine.engine(s.engine))]
    is_free = is_transfer & np.isin(rows["stream"], free)
    _refuse(is_free & (rows["cycles"] > 0), "cycles", "a transfer with engine cycles")


def _check_bursts(unit: UnitProgram, machine: Machine) -> None:
    """What passes a port that counts bursts has all of the payload; other ports count none."""
    rows = unit.instructions
    is_transfer = np.isin(rows["opcode"], [int(o) for o in _TRANSFERS])
    for name, burst in zip(PASSED[1:], burst_units(machine), strict=True):
        if burst == 1:
            _refuse(is_transfer & (rows[name] != 0), name, "a transfer counts bursts of one byte")
            continue
        is_counted = np.array([r.counted == name for r in unit.resources] + [False])
        passes = is_transfer & is_counted[rows["resource"]].any(axis=1)
        _refuse(passes & (rows[name] < rows["bytes"]), name, "less passes a port than is moved")


def _extreme_rows(unit: UnitProgram) -> Iterator[npt.NDArray[np.void]]:
    """The rows with their least, and with their greatest fields, over all iterations."""
    loops, last = unit.loops, last_counters(unit.loops)
    for pick in (np.minimum, np.maximum):
        rows = unit.instructions.copy()
        for name in STRIDE.names or ():
            stride = loops.stride[name].astype(np.int64)
            counts = last.reshape(*last.shape, *[1] * (stride.ndim - 2))
            far = np.abs(stride.astype(np.float64)) * counts > _FARTHEST
            is_far = np.asarray(far.reshape(len(rows), -1).any(axis=1))
            _refuse(is_far, name, f"{name} out of range")
            steps = stride * counts
            values = rows[name].astype(np.int64) + pick(steps, 0).sum(axis=1)
            bounds = np.iinfo(rows[name].dtype)
            wrong = ((values < bounds.min) | (values > bounds.max)).reshape(len(rows), -1)
            _refuse(np.asarray(wrong.any(axis=1)), name, f"{name} out of range")
            rows[name] = values
        yield rows


def _check_rows(unit: UnitProgram, rows: npt.NDArray[np.void]) -> None:
    num_ops = int(rows["op"].max()) + 1
    for field, low, high in (
        ("opcode", int(min(Opcode)), int(max(Opcode)) + 1),
        ("stream", 0, len(unit.streams)),
        ("node", 0, len(unit.nodes)),
        ("op", -1, num_ops),
        ("src", -1, len(unit.buffers)),
        ("dst", -1, len(unit.buffers)),
        ("resource", -1, len(unit.resources)),
        ("bytes", 0, None),
        ("macs", 0, None),
        ("cycles", 0, None),
        ("drawn", 0, None),
        ("returned", 0, None),
        ("inside", 0, None),
        ("starved", 0, None),
        ("latency", 0, None),
        ("iteration", 0, None),
        ("operand", -1, None),
    ):
        values = rows[field].astype(np.int64)
        bad = (values < low) if high is None else (values < low) | (values >= high)
        table = np.asarray(bad).reshape(len(rows), -1)
        _refuse(np.asarray(table.any(axis=1)), field, f"{field} out of range")
    is_transfer = np.isin(rows["opcode"], [int(o) for o in _TRANSFERS])
    is_compute = rows["opcode"] == int(Opcode.COMPUTE)
    _refuse(is_transfer & (rows["resource"][:, 0] < 0), "resource", "a transfer without ports")
    _refuse(is_compute & (rows["bytes"] > 0), "bytes", "a compute with bytes")
    idle = rows["starved"] > np.where(is_compute, rows["cycles"], 0)
    _refuse(idle, "starved", "waits for its own ports for longer than it takes")
    _refuse(is_compute & (rows["op"] < 0), "op", "a compute without an operator")
    sizes = [b.size_bytes for b in unit.buffers]
    home = max((o.size_bytes for o in unit.operands), default=0)
    limit = np.array([*sizes, home], dtype=np.int64)  # the last entry serves index -1
    elems = np.array([*(prod(b.extents) for b in unit.buffers), home], dtype=np.int64)
    for side in ("src", "dst"):
        offset, size = rows[f"{side}_offset"], limit[rows[side]]
        _refuse(
            (offset < 0) | ((offset >= size) & (rows["bytes"] > 0)),
            f"{side}_offset", "an address outside its buffer",
        )  # fmt: skip
        fits = rows["bytes"] <= elems[rows[side]] * _WIDEST  # bytes count the slower end's type
        _refuse(is_transfer & (rows[side] >= 0) & ~fits, "bytes", "more bytes than a slot holds")


def _check_receivers(unit: UnitProgram, machine: Machine) -> None:
    """Of a program without loops: only a multicast names several ports of a kind; it writes into
    instances of a level that it does not read, that of its own core first, one core each."""
    rows, ports = unit.instructions, unit.resources
    if not len(rows):
        return
    several = np.append(widths(ports) > 1, False)
    is_write = np.append([port.direction == "write" for port in ports], False)
    level = np.array([*(port.level for port in ports), ""])
    named = rows["resource"]
    is_multicast = rows["opcode"] == int(Opcode.MULTICAST)
    is_set = several[named]
    count = np.sum(named >= 0, axis=1)
    last = np.take_along_axis(named, np.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    arrives = several[last] & is_write[last]
    _refuse(~is_multicast & is_set.any(axis=1), "receivers", "a transfer to several instances")
    _refuse(is_multicast & ~arrives, "receivers", "a multicast to a single instance")
    _refuse(
        is_multicast & ((level[named[:, 0]] == level[last]) | (rows["dst"] < 0)),
        "receivers", "a multicast that stays in its level",
    )  # fmt: skip
    for stream, port in sorted({(int(s), int(p)) for s, p in zip(
        rows["stream"][is_multicast], last[is_multicast], strict=True
    )}):  # fmt: skip
        core, target = unit.streams[stream].core, ports[port]
        per = machine.num_cores // machine.level(target.level).instances
        beyond = core + (target.count - 1) * target.step * per >= machine.num_cores
        at = is_multicast & (rows["stream"] == stream) & (last == port)
        wrong = core // per != target.instance or beyond
        message = f"core {core} does not serve {target.level} {target.instance}"
        _refuse(at & wrong, "receivers", message)


def _check_engine_ports(unit: UnitProgram, machine: Machine) -> None:
    """Of a program without loops: what a compute draws and returns passes the ports of its core's
    memory that serve engines; others name none, and no transfer names such a port."""
    rows = unit.instructions
    is_engines = np.array(
        [serves_an_engine(r.level, r.counted, machine) for r in unit.resources] + [False]
    )
    is_compute = rows["opcode"] == int(Opcode.COMPUTE)
    named = rows["resource"]
    _refuse(
        ~is_compute & is_engines[named].any(axis=1), "resource", "a transfer by an engine's port"
    )
    number = {(r.level, r.instance, r.counted): k for k, r in enumerate(unit.resources)
              if r.count == r.sharers == 1 and is_engines[k]}  # fmt: skip
    of_stream = np.full((2, len(unit.streams)), -1, dtype=np.int64)
    takes = np.zeros(len(unit.streams), dtype=np.bool_)
    for k, stream in enumerate(unit.streams):
        memory = machine.level(machine.engine(stream.engine).memory)
        if memory.serves_engines:
            takes[k] = True
            instance = stream.core * memory.instances // machine.num_cores
            for way, column in enumerate(ENGINE_WAYS):
                of_stream[way, k] = number.get((memory.name, instance, column), -2)
    wanted = np.full((len(rows), 2), -1, dtype=np.int64)
    for way, column in enumerate(ENGINE_WAYS):
        passes = is_compute & takes[rows["stream"]] & (rows[column] > 0)
        wanted[passes, way] = of_stream[way, rows["stream"][passes]]
    first = np.where(wanted[:, 0] == -1, wanted[:, 1], wanted[:, 0])
    second = np.where(wanted[:, 0] == -1, -1, wanted[:, 1])
    right = (named[:, 0] == first) & (named[:, 1] == second) & (named[:, 2:] < 0).all(axis=1)
    _refuse(is_compute & ~right, "resource", "a compute by ports that are not its engine's")


def _check_lists(unit: UnitProgram) -> None:
    count = unit.num_rows
    for name, pointer, tokens in (
        ("wait", unit.wait_ptr, unit.wait_token),
        ("signal", unit.signal_ptr, unit.signal_token),
    ):
        if len(pointer) != count + 1 or (count and pointer[0] != 0) or pointer[-1] != len(tokens):
            raise _fail(name, "pointers", "offsets do not match the lists")
        if np.any(np.diff(pointer) < 0):
            raise _fail(name, "pointers", "offsets decrease")
        if len(tokens) and (tokens.min() < 0 or tokens.max() >= unit.num_tokens):
            raise _fail(name, "tokens", f"a token is outside 0..{unit.num_tokens - 1}")


def _check_tokens(unit: UnitProgram) -> None:
    """Of a program without loops: every wait is for a signal in front of it."""
    count = unit.num_rows
    signaller = np.repeat(np.arange(count), np.diff(unit.signal_ptr))
    first = np.full(max(unit.num_tokens, 1), count, dtype=np.int64)
    np.minimum.at(first, unit.signal_token, signaller)
    waiter = np.repeat(np.arange(count), np.diff(unit.wait_ptr))
    late = first[unit.wait_token] >= waiter
    if np.any(late):
        at = int(np.flatnonzero(late)[0])
        raise _fail(
            f"instruction {int(waiter[at])}", "backward",
            f"waits for token {int(unit.wait_token[at])}, which nothing has signalled before",
        )  # fmt: skip


def _once(unit: UnitProgram) -> UnitProgram:
    """One iteration of every loop, but of those that wait for or signal other tokens in the next:
    what waits for a token that has been signalled once may do so as often as it likes."""
    loops = unit.loops
    if not len(loops.table):
        return unit
    table = loops.table.copy()
    table["trip"] = np.where(steps_of(unit), table["trip"], 1)
    return expanded(replace(unit, loops=replace(loops, table=table)))


def _refuse(bad: npt.NDArray[np.bool_], rule: str, message: str) -> None:
    if np.any(bad):
        raise _fail(f"instruction {int(np.flatnonzero(bad)[0])}", rule, message)
