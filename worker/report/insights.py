"""Short findings an architect acts on, each with the numbers it rests on and the nodes it names."""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.errors import Detail
from worker.report.node_names import short_op_type
from worker.report.parts import layer_parts
from worker.simulator.results import ModelSimulation

_SHARE = 0.2
"""A cause is worth a sentence when it takes at least this share of all cycles, bytes that nobody
asked for when they are this share of a memory's."""
_PORTS = ("port:", "link:")
_ISSUING = ("dma:",)
_ENGINES = ("engine:", "fill:")
_FEEDS = ("feed:",)


def _number(row: dict[str, Detail], key: str) -> int:
    value = row.get(key)
    return int(value) if isinstance(value, (int, float)) else 0


def _nodes(rows: Sequence[dict[str, Detail]], limit: int = 8) -> list[Detail]:
    names: list[Detail] = []
    for row in rows:
        found = row.get("onnx_nodes")
        if isinstance(found, list):
            names += [n for n in found if n not in names]
    return names[:limit]


def _blamed(row: dict[str, Detail], prefixes: tuple[str, ...]) -> int:
    """Cycles of a row that causes of some kinds are to blame for."""
    causes = row.get("causes")
    return sum(
        _number(cause, "cycles")
        for cause in (causes if isinstance(causes, list) else ())
        if isinstance(cause, dict) and str(cause["cause"]).startswith(prefixes)
    )


def _by_cycles(rows: Sequence[dict[str, Detail]]) -> list[dict[str, Detail]]:
    return sorted(rows, key=lambda r: (-_number(r, "cycles_total"), _number(r, "index")))


def _unasked(port: str, whole: ModelSimulation) -> str:
    """What of a memory's bytes nobody asked for, where that is much."""
    level = port.removeprefix("port:").rpartition(".")[0]
    for flow in whole.traffic:
        moved = flow.read_bytes + flow.write_bytes
        if flow.level == level and flow.unasked_bytes >= _SHARE * moved > 0:
            share = 100.0 * flow.unasked_bytes / moved
            return (
                f"; {share:.0f} % of {level}'s bytes are parts of bursts beside short rows of tiles"
            )
    return ""


def insights(rows: Sequence[dict[str, Detail]], whole: ModelSimulation) -> list[Detail]:
    """Findings, the costliest first.  Empty when nothing stands out.

    They rest on who is to blame for which cycles (`simulator/attribution`), so no cycle counts in
    two of them, `hot-layer` apart, which is about where and not why.
    """
    total = max(whole.cycles, 1)
    parts = layer_parts(rows, whole.cycles)
    found: list[tuple[int, dict[str, Detail]]] = []

    def add(name: str, cycles: int, message: str, nodes: list[Detail]) -> None:
        if cycles >= _SHARE * total:
            share = f"{100.0 * cycles / total:.1f} % of all cycles"
            found.append(
                (cycles, {"id": name, "severity": "warning" if cycles > total // 2 else "info",
                          "message": f"{message} ({share})", "nodes": nodes})
            )  # fmt: skip

    def costliest(prefixes: tuple[str, ...]) -> list[dict[str, Detail]]:
        guilty = [r for r in parts if _blamed(r, prefixes)]
        return sorted(guilty, key=lambda r: (-_blamed(r, prefixes), _number(r, "index")))

    blamed = {c.cause: c.cycles for c in whole.causes}
    units = [r for r in rows if r.get("placement") == "accelerator"]
    hosts = [r for r in rows if r.get("placement") == "host"]
    add("launch-overhead", blamed.get("launch", 0),
        f"launching {len(units)} kernels costs {blamed.get('launch', 0)} cycles: fuse operators",
        [])  # fmt: skip
    on_host = blamed.get("host", 0) + blamed.get("host-link", 0)
    add("host-parts", on_host,
        f"{len(hosts)} host parts cost {on_host} cycles with their copies",
        _nodes(_by_cycles(hosts)))  # fmt: skip
    moving = {name: cycles for name, cycles in blamed.items() if name.startswith(_PORTS)}
    if moving:
        port = max(moving, key=lambda name: moving[name])
        add("memory-bound", sum(moving.values()),
            f"memory traffic is waited for, most of it at {port}: fusion or a larger buffer helps"
            + _unasked(port, whole),
            _nodes(costliest(_PORTS)))  # fmt: skip
    issuing = sum(cycles for name, cycles in blamed.items() if name.startswith(_ISSUING))
    add("issue-bound", issuing,
        "transfer engines set up transfers, or have no room for more on their way: fewer and larger"
        " transfers help", _nodes(costliest(_ISSUING)))  # fmt: skip
    starving = {name: cycles for name, cycles in blamed.items() if name.startswith(_FEEDS)}
    if starving:
        feed = max(starving, key=lambda name: starving[name])
        add("feed-bound", sum(starving.values()),
            f"engines wait for their own memory, most of all at {feed}: wider ports, or tiles that"
            " an array uses for longer, help", _nodes(costliest(_FEEDS)))  # fmt: skip
    add("latency-bound", blamed.get("latency", 0),
        "single transfers and computations are waited for while nothing else can start: larger"
        " tiles or more buffers hide their latency", _nodes(costliest(("latency",))))  # fmt: skip
    add("synchronisation-bound", blamed.get("synchronisation", 0),
        "cores wait for each other's signals: larger tiles, or parts that a core computes alone,"
        " need fewer of them", _nodes(costliest(("synchronisation",))))  # fmt: skip
    slack = [
        r
        for r in units
        if str(r.get("bound_by")).startswith(_ENGINES)
        and _number(r, "cycles_total") > 2 * max(_number(r, "lower_bound_cycles"), 1)
    ]
    add("far-from-bound", sum(_blamed(r, _ENGINES) for r in slack),
        f"the engines of {len(slack)} kernels work over twice as long as they must: tiles or cores"
        " are badly filled", _nodes(_by_cycles(slack)))  # fmt: skip
    top = _by_cycles(parts)[:1]
    if top:
        add("hot-layer", _number(top[0], "cycles_total"),
            f"one {short_op_type(str(top[0].get('op_type')))} dominates", _nodes(top))  # fmt: skip
    found.sort(key=lambda item: (-item[0], str(item[1]["id"])))
    return [finding for _, finding in found]
