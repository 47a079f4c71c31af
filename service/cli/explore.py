"""`explore`: which chips of a range are worth building for a model."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.asking import asked
from service.cli.compiling import HardwareOption, SymbolsOption
from service.cli.connection import DataDirOption, load_settings, quiet_logs
from service.cli.exits import Exit
from service.cli.failures import Failure, Told
from service.cli.inputs import hardware_label, symbol_settings
from service.cli.output import JsonFlag, cell, note, print_json, print_table, print_text
from service.orders.order import Order, existing_model, hardware_document

if TYPE_CHECKING:
    from worker.explore.fields import Field

ROWS = "explored.jsonl"
"""Rows so far, under a line that says of what: a further run goes on."""
SEARCHES_AT_ONCE = 200
"""Kernels tiled by one payload: some ten seconds, which is what an interrupt may lose."""
SHOWN = 20
"""Rows of the front in a terminal."""


def explore(
    model: Annotated[Path, typer.Argument(help="An .onnx file, or a .zip with external data.")],
    hardware: HardwareOption,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="FIELD=VALUES",
            help="Values of a number of the spec: SRAM.capacity_bytes=64KiB,128KiB; x0.5,x2: of"
            " what it is; 16KiB..1MiB: doubled; A+B=...: in step; repeatable.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder (default MODEL-HARDWARE-explored)."),
    ] = None,
    costs: Annotated[
        str,
        typer.Option(
            "--front",
            help="What is compared: latency_s, energy_pj, on_chip_bytes, area_mm2,"
            " off_chip_bytes_per_s (default all).",
        ),
    ] = "",
    winners: Annotated[
        int, typer.Option(min=0, max=20, help="Chips of the front that are compiled and simulated.")
    ] = 3,
    strategy: Annotated[
        str,
        typer.Option(help="Of the winners' programs (default: that of the estimates)."),
    ] = "",
    symbols: SymbolsOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate a model on every chip of a range, and compile it for the best.

    Kernels and host work are those of the program for the chip as it is; every kernel is tiled anew
    for each chip.  Ctrl-C keeps what is known: the same command goes on.  Writes explore.json,
    explore.csv, explore.html and a folder for each winner.
    """
    from worker.compiler.descriptors import estimating
    from worker.compiler.machine import canonical_document, load_machine, preset_document
    from worker.explore.chips import COSTS
    from worker.explore.fields import in_search_order, parse_field, values_of
    from worker.explore.winners import best_of, marked

    compared = tuple(dict.fromkeys(costs.split(","))) if costs else COSTS
    if unknown := [name for name in compared if name not in COSTS]:
        raise typer.BadParameter(
            f"{unknown[0]} is none of {', '.join(COSTS)}", param_hint="--front"
        )
    given = hardware_document(hardware)
    document = preset_document(given["preset"]) if set(given) == {"preset"} else given
    load_machine(document)  # what is wrong with it is said at once
    document = canonical_document(document)
    fields = [parse_field(text, document) for text in vary]
    asked_for = in_search_order(fields)
    folder = output or Path(f"{model.stem}-{hardware_label(hardware)}-explored")
    compiler = _Compiler(existing_model(model), symbol_settings(symbols or []), data_dir, as_json)
    base = compiler.compiled(document, estimating().name, folder / "base")
    bundle = Path(base["files"]["bundle"])
    started = time.monotonic()
    rows, new = _rows(bundle, document, vary, asked_for, folder / ROWS, quiet=as_json)
    took = time.monotonic() - started
    for choice, row in zip(asked_for, rows, strict=True):
        row["choice"] = list(choice)
        row["values"] = values_of(fields, choice)
    rows.sort(key=lambda row: row["choice"])
    won = best_of(marked(rows, compared), winners)
    found: dict[str, Any] = {
        "model": model.stem, "hardware": document["name"], "vary": vary, "costs": list(compared),
        "rows": rows, "winners": [],
    }  # fmt: skip
    for number, row in enumerate(won, 1):
        found["winners"].append(
            compiler.winner(
                row, document, fields, strategy or estimating().name, folder / f"winner-{number}"
            )
        )
    names = [name for field in fields for name in field.names]
    _write(found, names, folder)
    if as_json:
        print_json(found)
    else:
        _print(found, names, folder, f"{new} of {len(rows)} chips estimated in {took:.1f} s")


class _Compiler:
    """Compiles the model for one chip after the other."""

    def __init__(
        self, model: Path, symbols: dict[str, int], data_dir: Path | None, quiet: bool
    ) -> None:
        self.model = model
        self.symbols = symbols
        self.settings = load_settings(data_dir)
        self.quiet = quiet
        quiet_logs()

    def compiled(self, document: dict[str, Any], strategy: str, folder: Path) -> dict[str, Any]:
        """The job's document.

        Raises:
            Told: the compile was refused.
        """
        from service.cli.progress import ProgressView
        from service.orders.here import compile_here
        from worker.compiler.options import CompileOptions

        options = {"strategy": strategy, "verify": "none", "symbols": self.symbols}
        order = Order(self.model, document, CompileOptions.from_json(options).to_json(), folder)
        with ProgressView(folder.name, quiet=self.quiet) as view:
            job = compile_here(order, self.settings, view)
        if job["state"] != "succeeded":
            raise Told(job["error"])
        return job

    def winner(
        self, row: dict[str, Any], document: dict[str, Any], fields: Sequence[Field],
        strategy: str, folder: Path,
    ) -> dict[str, Any]:  # fmt: skip
        """A row with what the simulation says; with `error` where it cannot be compiled."""
        from worker.explore.fields import document_of

        own = document_of(document, fields, row["choice"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hardware.json").write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
        simulated: dict[str, Any] = {"strategy": strategy, "folder": folder.name}
        try:
            job = self.compiled(own, strategy, folder)
        except Told as refusal:
            return {**row, **simulated, "error": refusal.problem.get("detail", "refused")}
        report = json.loads(Path(job["files"]["report"]).read_bytes())
        for name in ("latency_s", "energy_pj"):
            simulated[f"simulated_{name}"] = report["summary"][name]
        return {**row, **simulated}


def _rows(
    bundle: Path, document: dict[str, Any], vary: Sequence[str],
    wanted: Sequence[tuple[int, ...]], path: Path, *, quiet: bool,
) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
    """A row for every chip, and how many of them are new."""
    from service.cli.progress import ProgressView

    of = hashlib.sha256(
        bundle.read_bytes() + json.dumps([document, list(vary)], sort_keys=True).encode()
    ).hexdigest()
    rows = _known(path, of)
    before = len(rows)
    if rows:
        note(f"{before} of {len(wanted)} chips are known: {path}")
    with path.open("a", encoding="utf-8") as file, ProgressView("explore", quiet=quiet) as view:
        if not file.tell():
            file.write(json.dumps({"of": of}) + "\n")
        view.stage("chips", "started")
        while len(rows) < len(wanted):
            request = {
                "source": str(bundle.resolve()), "document": document, "vary": list(vary),
                "choices": [list(choice) for choice in wanted[len(rows) : len(rows) + 1000]],
                "most_searches": SEARCHES_AT_ONCE,
            }  # fmt: skip
            new = asked(
                "worker.children.explore_child", request, [bundle.resolve()], "estimate of chips"
            )["rows"]
            rows += new
            file.writelines(json.dumps(row) + "\n" for row in new)
            file.flush()
            view.units(len(rows) - before, before, len(wanted))
    return rows, len(rows) - before


def _known(path: Path, of: str) -> list[dict[str, Any]]:
    """Rows of an earlier run; a line that was cut off is left out, and so is what is of something
    else.

    Raises:
        Failure: TW-CLI-001, the file is another exploration's.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    try:
        head, *rows = [json.loads(line) for line in whole] or [{"of": of}]
    except ValueError:
        head, rows = {}, []
    if not isinstance(head, dict) or head.get("of") != of:
        raise Failure(
            "TW-CLI-001", f"{path} is of another model, chip, range or release",
            remedy="Give another folder with -o, or remove that file.",
        )  # fmt: skip
    path.write_text("".join(whole), encoding="utf-8")
    return rows


def _write(found: dict[str, Any], names: Sequence[str], folder: Path) -> None:
    from worker.explore.shown import page, table_csv

    text = json.dumps(found, indent=1) + "\n"
    (folder / "explore.json").write_text(text, encoding="utf-8")
    (folder / "explore.csv").write_bytes(table_csv(found["rows"], names))
    (folder / "explore.html").write_text(page(found, names), encoding="utf-8")


def _print(found: dict[str, Any], names: Sequence[str], folder: Path, said: str) -> None:
    from worker.explore.shown import why

    kept = [row for row in found["rows"] if row["is_on_front"]]
    kept.sort(key=lambda row: row["latency_s"])
    columns = (*names, *found["costs"], "gap")
    print_table(columns, [_shown(row, names) for row in kept[:SHOWN]])
    more = f", {len(kept) - SHOWN} more in explore.csv" if len(kept) > SHOWN else ""
    print_text(f"\n{said}; {len(kept)} of them on the front{more}")
    others = [why(row) for row in found["rows"] if why(row)]
    if others:
        print_text(f"{len(others)} have no figures, e.g. {others[0]}")
    if found["winners"]:
        print_text("\nwinners, estimated and simulated")
        shown = (*names, "latency_s", "simulated_latency_s", "energy_pj", "simulated_energy_pj",
                 "folder", "error")  # fmt: skip
        print_table(shown, [_shown(row, names) for row in found["winners"]])
    note(f"results in {folder}: explore.csv, explore.html, explore.json")
    if not kept:
        raise typer.Exit(Exit.INFEASIBLE)


def _shown(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    gap = row["gap"]
    values = dict(zip(names, map(cell, row["values"]), strict=True))
    return {**row, **values, "gap": None if gap is None else f"{gap:.2%}"}
