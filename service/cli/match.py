"""`hardware match`: try a spec's patterns on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.asking import asked
from service.cli.compiling import SymbolsOption
from service.cli.inputs import symbol_settings
from service.cli.output import JsonFlag, print_json, print_table, print_text
from service.orders.order import existing_model, hardware_document


def match(
    spec: Annotated[str, typer.Argument(help="Preset name, or a YAML or JSON spec file.")],
    model: Annotated[Path, typer.Argument(help="An .onnx file, or a .zip with external data.")],
    pattern: Annotated[
        str | None, typer.Option("--pattern", help="Show this row of the pattern tables only.")
    ] = None,
    precision: Annotated[
        str,
        typer.Option("--precision", help="Number format that a compile would convert to."),
    ] = "native",
    symbols: SymbolsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print which composites the spec's patterns find in a model, and why the near misses fail."""
    from worker.compiler.options import CompileOptions

    options = CompileOptions.from_json(
        {"symbols": symbol_settings(symbols or []), "precision": precision}
    )
    source = existing_model(model).resolve()
    request = {
        "model": str(source),
        "hardware": hardware_document(spec),
        "options": options.to_json(),
        "pattern": pattern,
    }
    found: dict[str, Any] = asked("worker.children.match_child", request, [source], "match")
    if as_json:
        print_json(found)
        return
    matches = [row for target in found["targets"] for row in target["matches"]]
    misses = [row for target in found["targets"] for row in target["near_misses"]]
    num_patterns = sum(target["patterns"] for target in found["targets"])
    print_text(f"patterns: {num_patterns}, nodes: {found['nodes']}, composites: {len(matches)}")
    if matches:
        shown = [{**row, "nodes": ", ".join(row["nodes"])} for row in matches]
        print_table(("target", "pattern", "runs_as", "nodes"), shown)
    for target in found["targets"]:
        calls = (f"{name} {own} of {all_}" for name, (own, all_) in target["in_calls"].items())
        print_text(f"{target['target']}: run by instructions: {', '.join(calls) or 'nothing'}")
        for kind in ("patterns", "instructions"):
            if target[f"unused_{kind}"]:
                names = ", ".join(target[f"unused_{kind}"])
                print_text(f"{target['target']}: {kind} that the model does not use: {names}")
    outside = [row for target in found["targets"] for row in target["outside_calls"]]
    if outside:
        print_text(f"products that no instruction runs: {len(outside)}")
        print_table(("target", "node", "op_type", "reason"), outside)
    if found["unused_operators"]:
        names = ", ".join(found["unused_operators"])
        print_text(f"operators defined that the model does not use: {names}")
    print_text(f"near misses: {len(misses)}")
    if misses:
        print_table(("target", "pattern", "root", "reason"), misses)
