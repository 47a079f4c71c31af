"""`report`, `layers`, `placement`, `schedule`, `trace`: look into a job's or a bundle's results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.connection import DataDirOption, ServerOption
from service.cli.output import JsonFlag, note, print_json, print_table, print_text
from service.cli.sources import open_source
from service.cli.summaries import print_summaries
from service.cli.summary import print_summary

SourceArgument = Annotated[
    str, typer.Argument(help="Job id, bundle (*.twb), or folder of results.", metavar="JOB|BUNDLE")
]
LAYER_COLUMNS = (
    "index",
    "part",
    "op_type",
    "placement",
    "cache",
    "cycles_total",
    "pct_cycles",
    "bound_by",
    "utilization_pct",
    "energy_pct",
    "onnx_nodes",
)


_LAYER_TITLES = {
    "index": "#",
    "part": "part",
    "op_type": "op",
    "placement": "on",
    "cache": "cache",
    "cycles_total": "cycles",
    "pct_cycles": "% cyc",
    "bound_by": "bound by",
    "utilization_pct": "% util",
    "energy_pct": "% pJ",
    "onnx_nodes": "nodes",
}
"""What a terminal calls them."""


def report(
    source: SourceArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the head of the report; with --json all of it, and what the run was like (`run`)."""
    with open_source(source, server, data_dir) as results:
        document = results.report()
        run = results.run(document)
    if as_json:
        print_json({**document, "run": run})
        return
    print_summary(document, run)
    strategies = document.get("strategies") or []
    if strategies:
        print_table(
            ("name", "chosen", "latency_cycles", "energy_pj", "offchip_bytes", "kernels", "reason"),
            strategies,
        )
    print_summaries(document)
    for insight in document.get("insights") or []:
        print_text(f"{insight.get('severity', 'info')}: {insight.get('message')}")


def layers(
    source: SourceArgument,
    top: Annotated[
        int | None, typer.Option(min=1, help="Only the N layers with the most cycles.")
    ] = None,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print one row per group of nodes, in order of execution or by cost with --top.

    Long lists of nodes are shortened to their ends; --json has all.
    """
    from worker.report.node_names import node_span
    from worker.report.parts import layer_parts
    from worker.report.run import with_outcomes

    with open_source(source, server, data_dir) as results:
        document = results.report()
        run = results.run(document)
    summary = document.get("summary")
    total = summary.get("latency_cycles") if isinstance(summary, dict) else None
    parts = layer_parts(document.get("layers"), total if isinstance(total, int) else 0)
    rows = with_outcomes(parts, run)
    if top is not None:
        rows = sorted(rows, key=lambda row: -(row.get("cycles_total") or 0))[:top]
    if as_json:
        print_json({"items": rows})
    else:
        spans = [{**row, "onnx_nodes": node_span(row.get("onnx_nodes") or [])} for row in rows]
        print_table(LAYER_COLUMNS, spans, _LAYER_TITLES)


def placement(
    source: SourceArgument,
    host: Annotated[bool, typer.Option("--host", help="Only what runs on the host.")] = False,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print where every node runs, and the reason of each that is not on the accelerator."""
    with open_source(source, server, data_dir) as results:
        rows: list[dict[str, Any]] = results.report().get("placement") or []
    if host:
        rows = [row for row in rows if row.get("target") == "host"]
    if as_json:
        print_json({"items": rows})
    else:
        print_table(("node", "op_type", "target", "reason_code", "reason"), rows)


def schedule(
    source: SourceArgument,
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the schedule trees."""
    from worker.report.node_names import node_span

    with open_source(source, server, data_dir) as results:
        document = results.json("schedule")
    if as_json:
        print_json(document)
        return
    for unit in document.get("units", []) if isinstance(document, dict) else []:
        nodes = node_span([str(node) for node in unit.get("onnx_nodes", [])])
        print_text(f"# {unit.get('kernel')} by {unit.get('strategy')}: {nodes}")
        print_text(str(unit.get("text", "")))


def trace(
    source: SourceArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write it; - for stdout.")
    ] = Path("trace.json.gz"),
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the Perfetto trace (gzipped JSON); open it in any Perfetto or Chrome trace viewer."""
    with open_source(source, server, data_dir) as results:
        data = results.read("trace")
    if str(output) == "-":
        sys.stdout.buffer.write(data)
        return
    output.write_bytes(data)
    if as_json:
        print_json({"output": str(output), "size_bytes": len(data)})
    else:
        note(f"wrote {output} ({len(data)} bytes)")
