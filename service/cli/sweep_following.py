"""What `sweep` and `sweeps` share: following a sweep, results as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from service.cli.connection import come_back
from service.cli.exits import Exit
from service.cli.output import note, print_json, print_problem, print_table, print_text

if TYPE_CHECKING:
    from service.client import Client

SHOWN = 20
"""Rows of the front in a terminal."""
_FIGURES = ("latency_s", "energy_pj", "on_chip_bytes")


def follow(client: Client, sweep_id: str, server: str | None, *, quiet: bool) -> dict[str, Any]:
    """Wait for a sweep's end; Ctrl-C cancels it, waits for that, and says how to resume.

    Raises:
        typer.Exit: code 7 after Ctrl-C.
    """
    from service.cli.progress import ProgressView

    try:
        with ProgressView("sweep", quiet=quiet) as view:
            return client.wait_sweep(sweep_id, on_update=view.sweep)
    except KeyboardInterrupt as error:
        found = client.sweep(sweep_id)
        if found["state"] in ("running", "canceling"):
            client.cancel_sweep(sweep_id)
            found = client.wait_sweep(sweep_id)
        progress: Any = found["progress"]
        note(f"{found['state']}: {progress['succeeded']} of {progress['total']} items have results")
        come_back("sweeps resume", sweep_id, server)
        raise typer.Exit(Exit.CANCELED) from error


def finish(client: Client, sweep: dict[str, Any], output: Path | None, *, as_json: bool) -> None:
    """Print a sweep that has ended, write its results, and end with its exit code.

    Raises:
        typer.Exit: unless it succeeded; with the code of the first failure.
    """
    results: dict[str, Any] = client.sweep_results(str(sweep["id"]))
    if output is not None:
        write(client, results, output)
    if as_json:
        print_json({**sweep, "items": results["items"]})
    else:
        show(sweep)
        _compare(client, results)
    code = exit_of_sweep(sweep)
    if code != Exit.OK:
        raise typer.Exit(code)


def write(client: Client, results: dict[str, Any], output: Path) -> None:
    """The results as sweep.json, sweep.csv and sweep.html."""
    from worker.explore.sweep_page import sweep_page

    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1) + "\n"
    (output / "sweep.json").write_text(text, encoding="utf-8")
    (output / "sweep.csv").write_text(client.sweep_csv(results["id"]), encoding="utf-8")
    (output / "sweep.html").write_text(sweep_page(results), encoding="utf-8")
    note(f"results in {output}: sweep.csv, sweep.html, sweep.json")


def show(sweep: dict[str, Any]) -> None:
    """How far it is, the front, and what failed."""
    progress, front, explored = sweep["progress"], sweep["front"], sweep["explore"]
    print_text(
        f"{sweep['id']} {sweep['state']}: {progress['succeeded']} of {progress['total']} items have"
        f" results, {progress['failed']} failed, {progress['canceled']} canceled"
    )
    if explored is not None:
        print_text(
            f"{explored['estimated']} machines estimated, {explored['without_figures']} of them"
            f" without figures; {explored['winners']} of each front are compiled"
        )
    if front:
        fields: Sequence[str] = sweep["fields"]
        guessed = () if explored is None else ("estimated_latency_s", "estimated_energy_pj")
        columns = ("number", "model_name", "hardware_name", *fields, *_FIGURES, *guessed)
        rows = [_row(item, fields) for item in front]
        print_text("\nthe best, by model")
        print_table(columns, rows[:SHOWN])
        if len(front) > SHOWN:
            note(f"and {len(front) - SHOWN} more; --json lists all")
    for row in sweep["failures"]:
        note(f"item {row['number']} ({row['model_name']} on {row['hardware_name']}"
             f" {row['values'] or ''}) {row['state']}, job {row['job']}:")  # fmt: skip
        if row["error"]:
            print_problem(row["error"])


def _row(item: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    row = {**item, **dict(zip(fields, item["values"], strict=False))}
    if item["estimate"] is not None:  # beside what was simulated
        row |= {f"estimated_{name}": item["estimate"][name] for name in ("latency_s", "energy_pj")}
    return row


def _compare(client: Client, results: dict[str, Any]) -> None:
    """What differs, where a sweep is two results of one model."""
    items = results["items"]
    if len(items) != 2 or items[0]["model"] != items[1]["model"]:
        return
    if any(item["state"] != "succeeded" for item in items):
        return
    from service.cli.diff import print_comparison
    from service.compare import compare
    from service.compare.served import read_job
    from worker.compiler.errors import InputError

    try:
        sides = [read_job(client, f"{results['id']}:{item['number']}") for item in items]
        found = compare(*sides)
    except InputError as refusal:  # of results that another release left
        note(f"not compared: {refusal.message}")
        return
    print_text("")
    print_comparison(found, whole=False)


def exit_of_sweep(sweep: dict[str, Any]) -> int:
    """The exit code of a sweep that has ended: of one that failed, that of its first failure."""
    if sweep["state"] != "failed":
        return Exit.CANCELED if sweep["state"] == "canceled" else Exit.OK
    first = (sweep["failures"] or [{}])[0]
    code = (first.get("error") or {}).get("exit_code")
    return code if isinstance(code, int) else Exit.SERVICE
