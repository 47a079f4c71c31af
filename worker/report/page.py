"""report.html: one file, no scripts, no requests: opens from a mail attachment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from worker.compiler.cost.compute import compute_dtype, contraction, rate
from worker.compiler.errors import Detail
from worker.compiler.judge.compiled import CompiledModel
from worker.report.cause_bars import cause_bar
from worker.report.mesh import mesh_loads
from worker.report.mesh_map import mesh_map
from worker.report.node_names import node_span, short_op_type
from worker.report.parts import causes_in, layer_parts
from worker.report.plots import Bar, energy_bars, layer_bars, occupancy, roofline, si
from worker.report.readable import readable
from worker.report.style import page_of
from worker.report.summary_page import summaries_html
from worker.report.tables import flat, html_table, rows_of
from worker.report.timeline import Slice, timeline
from worker.report.what_if import costs
from worker.simulator.occupancy_steps import occupancy_steps
from worker.simulator.results import ModelSimulation, UnitSimulation

_STRATEGY_COLUMNS = (
    "name", "chosen", "latency_cycles", "energy_pj", "offchip_bytes", "kernels", "reason",
)  # fmt: skip
_COMPARED_COLUMNS = ("name", "max_rel_err", "tolerance", "own_error", "max_abs_err", "reason")
_MOST_COMPARED = 200
_LAYER_COLUMNS = (
    "index", "part", "onnx_nodes", "op_type", "placement", "cycles_total", "pct_cycles", "bound_by",
    "utilization_pct", "lower_bound_cycles", "roofline_cycles", "macs", "tile", "cores",
    "energy_pj",
)  # fmt: skip


def peak_rate(compiled: CompiledModel) -> float:
    """MACs per cycle of the whole machine in the fastest number format that its kernels multiply.

    1 where they multiply nothing: there is no roof to draw.
    """
    formats = {
        compute_dtype(op, graph.tensors)
        for graph in (unit.schedule.graph for unit in compiled.units)
        for op in graph.ops
        if contraction(op) is not None
    }
    rates = [rate(engine, dtype) for engine in compiled.machine.engines for dtype in formats]
    return compiled.machine.num_cores * (max(rates, default=0.0) or 1.0)


def report_page(
    document: Mapping[str, Detail],
    compiled: CompiledModel,
    sims: Sequence[UnitSimulation],
    whole: ModelSimulation,
) -> str:
    """The whole page."""
    machine = compiled.machine
    rows = rows_of(document, "layers")
    home = machine.home.name
    points: list[tuple[str, float, float, int]] = []
    for row in rows:
        macs, cycles = row.get("macs"), row.get("cycles_total")
        moved = [row.get(f"bytes_{home}_read"), row.get(f"bytes_{home}_write")]
        total = sum(b for b in moved if isinstance(b, int))
        if isinstance(macs, int) and isinstance(cycles, int) and cycles and total:
            points.append((_label(row), macs / total, macs / cycles, cycles))
    parted = layer_parts(rows, whole.cycles)
    bars = [
        (
            _label(r),
            _int(r, "cycles_total"),
            _int(r, "lower_bound_cycles"),
            causes_in(r.get("causes")),
        )
        for r in parted
    ]
    failed = [r for r in rows_of(document, "sanity") if r.get("passed") is not True]
    verification = document.get("verification")
    passed = isinstance(verification, dict) and verification.get("passed")
    title = f"{compiled.model.name} on {machine.name}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        *_host_verdict(document),
        f"<p>{si(whole.cycles)} cycles ·"
        f" {whole.cycles / machine.clock_hz * 1e3:.4g} ms · {si(whole.energy_pj * 1e-12, 'J')} ·"
        f" lower bound {si(whole.lower_bound_cycles)} cycles"
        f" ({escape(', '.join(b.name for b in whole.floor[:3]))}), roofline"
        f" {si(whole.roofline.cycles)} by {escape(whole.roofline.name)} · verification "
        + ('<span class="ok">passed</span>' if passed else
           f'<span class="bad">{"failed" if passed is False else _unverified(verification)}</span>')
        + "</p>",
    ]  # fmt: skip
    if failed:
        names = ", ".join(str(r.get("name")) for r in failed)
        parts.append(f'<p class="bad">Violated invariants: {escape(names)}</p>')
    parts += [
        "<h2>Insights</h2>",
        html_table(("severity", "message", "nodes"), rows_of(document, "insights")),
        "<h2>What the cycles are spent on</h2>",
        cause_bar(
            [(str(c.get("cause")), _int(c, "cycles")) for c in _causes(document)],
            whole.cycles,
            "Cycles by cause",
        ),
        "<h2>What would help</h2>",
        f"<p>{_HELP}</p>",
        html_table(_COST_COLUMNS, _costs(document, bars, whole.cycles, machine.clock_hz)),
        "<h2>Timeline</h2>",
        timeline(_slices(rows), whole.cycles, machine.clock_hz),
        "<h2>Roofline</h2>",
        roofline(
            points,
            peak_rate(compiled),
            machine.home.both_bytes_per_cycle,
        ),
        "<h2>Cycles per layer</h2>",
        layer_bars(bars),
        "<h2>Memory occupancy over time</h2>",
    ]
    for level in machine.placeable:
        steps = occupancy_steps(compiled.linked.program, sims, whole, level.name)
        parts.append(occupancy(level.name, level.capacity_bytes, steps, whole.cycles))
    parts += [
        "<h2>Energy</h2>",
        energy_bars([(e.item, e.pj, e.low_pj, e.high_pj) for e in whole.energy]),
        *_energy_range(whole),
        *(f"<h2>Load of the mesh</h2>{mesh_map(load)}" for load in mesh_loads(machine, whole)),
        "<h2>Summary</h2>",
        html_table(("figure", "value", "reads as"), _figures(document)),
        "<h2>Strategies</h2>",
        html_table(_STRATEGY_COLUMNS, rows_of(document, "strategies")),
        "<h2>Verification</h2>",
        html_table(("figure", "value"),
               [r for r in flat(verification) if r.get("figure") != "outputs"]),
        html_table(_COMPARED_COLUMNS, _nearest(verification)),
        "<h2>Layers</h2>",
        html_table(_LAYER_COLUMNS, [_spanned(row) for row in parted]),
        *summaries_html(document),
        *_partition(document),
        "<h2>Placement</h2>",
        html_table(("node", "op_type", "target", "reason_code", "reason"),
               rows_of(document, "placement")),
        "<h2>Sanity</h2>",
        html_table(("name", "passed", "detail"), rows_of(document, "sanity")),
        "<h2>Guesses in the hardware spec</h2>",
        html_table(("pointer", "value", "note"), _guesses(document)),
        *_oracles(document),
        "<h2>Warnings</h2>",
        html_table(("code", "message"), rows_of(document, "warnings")),
        "<p>Every figure is defined in docs/figures.md of Tilewright.</p>",
    ]  # fmt: skip
    return page_of(title, parts)


_COST_COLUMNS = (
    "cause", "cycles", "pct_cycles", "what is changed", "at most faster by", "then at least",
    "layers with most of it",
)  # fmt: skip
_HELP = (
    "Twice of a resource, or half of a wait, takes away at most half of the cycles that are blamed"
    " on it, less where another chain is nearly as long. The program stays as it is:"
    " <code>tilewright explain layer</code>, and <i>What would help</i> on a job's page, search for"
    " a better one."
)


def _costs(
    document: Mapping[str, Detail], bars: Sequence[Bar], total: int, clock_hz: float
) -> list[dict[str, Detail]]:
    """What each cause costs, and what twice of its resource would bring."""
    causes = [(str(c.get("cause")), _int(c, "cycles")) for c in _causes(document)]
    layers = [(label, blamed) for label, _, _, blamed in bars]
    return [
        {
            "cause": cost.cause, "cycles": cost.cycles, "pct_cycles": cost.pct,
            "what is changed": cost.lever, "at most faster by": f"{cost.factor:.3f}x",
            "then at least": si(cost.least_cycles / clock_hz, "s"),
            "layers with most of it": "; ".join(f"{name} ({own:,})" for name, own in cost.layers),
        }
        for cost in costs(causes, total, layers)
    ]  # fmt: skip


def _slices(rows: Sequence[Mapping[str, Detail]]) -> list[Slice]:
    """Where each kernel and each host part is in time."""
    return [
        Slice(_label(row), _int(row, "start_cycle"), _int(row, "end_cycle"),
              row.get("placement") == "host", str(row.get("bound_by") or ""))
        for row in rows
        if isinstance(row.get("end_cycle"), int)
    ]  # fmt: skip


_REGION_COLUMNS = (
    "index", "target", "onnx_nodes", "kernels", "launch_cycles", "transfer_cycles",
    "execute_cycles", "host_cycles",
)  # fmt: skip
_DECISION_COLUMNS = (
    "first_node", "action", "rule", "ops", "macs", "boundary_bytes", "accelerator_cycles",
    "transfer_cycles", "launch_cycles", "host_cycles", "sentence",
)  # fmt: skip


def _host_verdict(document: Mapping[str, Detail]) -> list[str]:
    """The first line, where the host won."""
    section = document.get("partition")
    said = section.get("host_verdict") if isinstance(section, dict) else ""
    return [f"<p><b>{escape(str(said))}.</b></p>"] if said else []


_CANDIDATE_COLUMNS = (
    "regions_by", "chosen", "latency_cycles", "energy_pj", "offchip_bytes", "peak_bytes",
    "regions", "kernels", "same_as", "reason",
)  # fmt: skip


def _partition(document: Mapping[str, Detail]) -> list[str]:
    """Regions with their costs on both sides, what decided, formats, and what would help."""
    section = document.get("partition")
    if not isinstance(section, dict):
        return []
    shares = [
        f"{escape(label)} {value:.4g} %"
        for label, key in (("nodes", "node_pct"), ("composites as one", "unit_pct"),
                           ("MACs", "mac_pct"))
        if isinstance(value := section.get(key), float)
    ]  # fmt: skip
    regions = [_spanned(row) for row in rows_of(section, "regions")]
    parts = [
        "<h2>Partition</h2>",
        f"<p>On the accelerator: {' · '.join(shares)}</p>",
        *_candidates(section),
        html_table(_REGION_COLUMNS, regions),
        "<h2>What decided about regions</h2>",
        html_table(_DECISION_COLUMNS, rows_of(section, "decisions")),
    ]
    conversion = document.get("conversion")
    if isinstance(conversion, dict) and conversion.get("boundaries"):
        parts += [
            "<h2>Number formats at boundaries</h2>",
            html_table(("value", "target", "kind", "dtype", "scale", "zero_point", "sqnr_db"),
                   rows_of(conversion, "boundaries")),
        ]  # fmt: skip
    if document.get("unlock"):
        parts += [
            "<h2>What would help most</h2>",
            html_table(("op_type", "kind", "num_nodes", "saves_s", "sentence"),
                   rows_of(document, "unlock")),
        ]  # fmt: skip
    return parts


def _candidates(section: Mapping[str, Detail]) -> list[str]:
    """Ways of choosing regions side by side, where several were simulated."""
    rows = [
        {**row, "same_as": ", ".join(map(str, same)) if isinstance(same, list) else ""}
        for row in rows_of(section, "candidates")
        for same in (row.get("same_as"),)
    ]
    return ["<h3>Ways of choosing regions</h3>", html_table(_CANDIDATE_COLUMNS, rows)] * bool(rows)


def _unverified(verification: Detail) -> str:
    """Whether nothing ran, or what ran proves nothing."""
    ran = isinstance(verification, dict) and verification.get("max_abs_err") is not None
    return "not conclusive" if ran else "not run"


def _figures(document: Mapping[str, Detail]) -> list[dict[str, Detail]]:
    """The summary; its causes have a table of their own."""
    return [
        {**row, "reads as": readable(str(row["figure"]), row["value"])}
        for row in flat(document.get("summary"))
        if row["figure"] != "causes"
    ]


def _causes(document: Mapping[str, Detail]) -> list[dict[str, Detail]]:
    summary = document.get("summary")
    return rows_of(summary, "causes") if isinstance(summary, dict) else []


def _nearest(verification: Detail) -> list[dict[str, Detail]]:
    """What was compared, the nearest to its tolerance first; report.json has all."""
    rows = rows_of(verification, "outputs") if isinstance(verification, dict) else []

    def share(row: Mapping[str, Detail]) -> float:
        error, bound = row.get("max_rel_err"), row.get("tolerance")
        if not isinstance(error, int | float) or not isinstance(bound, int | float) or not error:
            return 0.0
        return error / bound if bound else float("inf")

    return sorted(rows, key=share, reverse=True)[:_MOST_COMPARED]


def _spanned(row: Mapping[str, Detail]) -> dict[str, Detail]:
    """A row whose list of nodes is shortened; report.json and layers.csv have all."""
    names = row.get("onnx_nodes")
    return {**row, "onnx_nodes": node_span([*map(str, names)]) if isinstance(names, list) else ""}


def _label(row: Mapping[str, Detail]) -> str:
    """What a plot calls a layer."""
    return f"{row.get('index')} {short_op_type(str(row.get('op_type')))}"


def _int(row: Mapping[str, Detail], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0


def _energy_range(whole: ModelSimulation) -> tuple[str, ...]:
    low, high = whole.energy_range_pj
    if low == high:
        return ()
    return (
        f"<p>{si(low * 1e-12, 'J')} to {si(high * 1e-12, 'J')} with every energy of the spec that"
        " is a guess or a range at its low end, or at its high one.</p>",
    )


def _oracles(document: Mapping[str, Detail]) -> tuple[str, ...]:
    hardware = document.get("hardware")
    rows = rows_of(hardware, "oracles") if isinstance(hardware, dict) else []
    if not rows:
        return ()
    columns = ("engine", "intrinsic", "oracle", "dtype", "sizes", "whole_cycles", "least_cycles")
    return "<h2>Cycles that oracles gave</h2>", html_table(columns, rows)


def _guesses(document: Mapping[str, Detail]) -> list[dict[str, Detail]]:
    hardware = document.get("hardware")
    return rows_of(hardware, "guesses") if isinstance(hardware, dict) else []
