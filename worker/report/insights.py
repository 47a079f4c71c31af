"""Short findings an architect acts on, each with the numbers it rests on and the nodes it names."""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.errors import Detail
from worker.report.node_names import short_op_type
from worker.simulator.results import ModelSimulation

_SHARE = 0.2
"""A cause is worth a sentence when it takes at least this share of all cycles."""


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


def _by_cycles(rows: Sequence[dict[str, Detail]]) -> list[dict[str, Detail]]:
    return sorted(rows, key=lambda r: (-_number(r, "cycles_total"), _number(r, "index")))


def insights(rows: Sequence[dict[str, Detail]], whole: ModelSimulation) -> list[Detail]:
    """Findings, the costliest first.  Empty when nothing stands out."""
    total = max(whole.cycles, 1)
    found: list[tuple[int, dict[str, Detail]]] = []

    def add(name: str, cycles: int, message: str, nodes: list[Detail]) -> None:
        if cycles >= _SHARE * total:
            share = f"{100.0 * cycles / total:.1f} % of all cycles"
            found.append(
                (cycles, {"id": name, "severity": "warning" if cycles > total // 2 else "info",
                          "message": f"{message} ({share})", "nodes": nodes})
            )  # fmt: skip

    units = [r for r in rows if r.get("placement") == "accelerator"]
    hosts = [r for r in rows if r.get("placement") == "host"]
    memory = [r for r in units if str(r.get("bound_by")).startswith("traffic:")]
    compute = [r for r in units if str(r.get("bound_by")).startswith("compute:")]
    add("launch-overhead", whole.launch_cycles,
        f"launching {len(units)} kernels costs {whole.launch_cycles} cycles: fuse operators",
        [])  # fmt: skip
    add("host-parts", whole.host_cycles,
        f"{len(hosts)} host parts cost {whole.host_cycles} cycles with their copies",
        _nodes(_by_cycles(hosts)))  # fmt: skip
    add("memory-bound", sum(_number(r, "cycles_total") for r in memory),
        f"{len(memory)} kernels are bounded by memory traffic: fusion or a larger buffer helps",
        _nodes(_by_cycles(memory)))  # fmt: skip
    slack = [
        r
        for r in compute
        if _number(r, "cycles_total") > 2 * max(_number(r, "lower_bound_cycles"), 1)
    ]
    add("far-from-bound", sum(_number(r, "cycles_total") for r in slack),
        f"{len(slack)} compute-bounded kernels take over twice their bound: tiles or cores are"
        " badly filled", _nodes(_by_cycles(slack)))  # fmt: skip
    top = _by_cycles(rows)[:1]
    if top:
        add("hot-layer", _number(top[0], "cycles_total"),
            f"one {short_op_type(str(top[0].get('op_type')))} dominates", _nodes(top))  # fmt: skip
    found.sort(key=lambda item: (-item[0], str(item[1]["id"])))
    return [finding for _, finding in found]
