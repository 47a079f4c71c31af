"""`backend`: start a new accelerator, and test one against its own document."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from service.cli.exits import Exit
from service.cli.failures import Failure
from service.cli.output import JsonFlag, is_interactive, note, print_json, print_text
from service.orders.order import hardware_document

app = typer.Typer(help="Bring your own accelerator.", no_args_is_help=True)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Name of the chip: letters, digits, _ and -.")],
    directory: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; by default NAME.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a commented spec, a vendor header, a conformance test and a README; replace nothing."""
    from worker.backend_kit.kit import write_kit

    written = write_kit(name, Path(name) if directory is None else directory)
    if as_json:
        print_json({"name": name, "files": [str(path) for path in written]})
        return
    for path in written:
        print_text(str(path))
    note(f"next: tilewright backend test {written[0]}")


@app.command("test")
def test(
    spec: Annotated[str, typer.Argument(help="Preset name, or a YAML or JSON spec file.")],
    op: Annotated[
        list[str] | None, typer.Option("--op", help="This operator or pattern only; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A fixed sample of the cases.")] = False,
    header: Annotated[
        Path | None, typer.Option("--header", help="A vendor's tilewright_rt.h.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write the JSON document to this file too.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run every claim of a spec through generated kernels; exit 1 when one is false."""
    from worker.compiler.cache import NullCache
    from worker.compiler.oracles import asked
    from worker.conformance.cases import Selection
    from worker.conformance.conform import check_machine
    from worker.conformance.report import conformance_document, conformance_table
    from worker.job.hardware import resolve_machine

    machine = asked(resolve_machine(hardware_document(spec)), NullCache())
    wanted = tuple(op or ())
    claimed = {
        name
        for target in machine.targets
        for name in (
            *(s.op_type for s in target.capabilities.ops),
            *(p.name for p in target.capabilities.patterns),
        )
    }
    unknown = [name for name in wanted if name not in claimed]
    if unknown:
        raise Failure(
            "TW-OPT-001",
            f"--op {unknown[0]}: {machine.name} claims no such operator or pattern",
            remedy=f"It claims {', '.join(sorted(claimed))}.",
        )
    vendor = None if header is None else header.read_text(encoding="utf-8")

    def progress(done: int, total: int) -> None:
        if is_interactive() and done % 100 == 0:
            note(f"{done} of {total} cases compiled")

    with tempfile.TemporaryDirectory(prefix="tilewright-conformance-") as folder:
        found = check_machine(machine, Path(folder), Selection(wanted, quick), vendor, progress)
    document = conformance_document(found)
    if report is not None:
        report.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    if as_json:
        print_json(document)
    else:
        print_text(conformance_table(found))
    if not found.passed:
        raise typer.Exit(Exit.GATE_FAILED)
