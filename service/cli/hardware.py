"""`hardware`: presets and specs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from service.cli.connection import DataDirOption, ServerOption, connect, load_settings
from service.cli.energy import import_energy
from service.cli.exits import Exit
from service.cli.manual import manual
from service.cli.match import match
from service.cli.measuring import measure_host
from service.cli.output import (
    JsonFlag,
    cell,
    note,
    print_fields,
    print_json,
    print_table,
    print_text,
)
from service.orders.order import hardware_document

app = typer.Typer(help="Hardware presets and specs.", no_args_is_help=True)
app.command("match")(match)
app.command("manual")(manual)
app.command("import-energy")(import_energy)
app.command("measure-host")(measure_host)
_MOST_STORED = 1000
"""Stored specs that a list shows."""


@app.command("ls")
def ls(
    server: ServerOption = None, data_dir: DataDirOption = None, as_json: JsonFlag = False
) -> None:
    """List the presets and the stored specs."""
    presets, stored = _listed(server, data_dir)
    if as_json:
        print_json({"presets": presets, "stored": stored})
        return
    rows: list[dict[str, Any]] = []
    for preset in presets:
        text = str(preset["description"]).split("\n")[0]
        rows.append({"name": preset["name"], "kind": "preset", "description": text})
    rows.extend({"name": s["name"], "kind": "stored", "description": s["id"]} for s in stored)
    print_table(("name", "kind", "description"), rows)


def _listed(
    server: str | None, data_dir: Path | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Presets, and stored specs newest first: the API's answers, without the API where they lie in
    files here, since starting it takes longer than all the rest."""
    if not server:
        from service.store.glance import stored_hardware
        from worker.compiler.machine import preset_rows

        stored = stored_hardware(load_settings(data_dir).database_url, limit=_MOST_STORED)
        if stored is not None:
            return preset_rows(), stored
    with connect(server, data_dir) as client:
        presets = cast("list[dict[str, Any]]", client.get("/v1/hardware/presets")["items"])
        pages = client.pages("/v1/hardware", {"limit": 100})
        return presets, list(islice(pages, _MOST_STORED))


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Preset name, stored id, or spec file.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a spec with its inheritance resolved."""
    if len(name) == 64 and all(c in "0123456789abcdef" for c in name):
        with connect(server, data_dir) as client:
            document: Any = client.get(f"/v1/hardware/{name}")["document"]
    else:
        from worker.compiler.machine import canonical_document, preset_document

        given = hardware_document(name)
        is_preset = set(given) == {"preset"}
        document = canonical_document(preset_document(name) if is_preset else given)
    if as_json:
        print_json(document)
        return
    import yaml

    print_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100))


@app.command("lint")
def lint(
    spec: Annotated[Path, typer.Argument(help="A YAML or JSON spec file.")],
    as_json: JsonFlag = False,
) -> None:
    """Report every finding about a spec at once; exit 3 when it would be refused."""
    from worker.compiler.errors import SpecError
    from worker.compiler.machine import digest, lint_document, load_machine

    document = hardware_document(str(spec))
    machine_digest, rejected = None, list[Any]()
    try:
        machine_digest = digest(load_machine(document))
    except SpecError as error:
        rejected = list(error.to_problem()["errors"])  # type: ignore[arg-type]  # a list always
        rejected = rejected or [{"code": error.code, "message": error.message, "pointer": ""}]
    known = {(row["code"], row["pointer"]) for row in rejected}
    warnings = [
        {"code": f.code, "message": f.message, "pointer": f.pointer, "actual": f.actual}
        for f in lint_document(document)
        if (f.code, f.pointer) not in known
    ]
    if as_json:
        print_json(
            {
                "valid": not rejected,
                "machine_digest": machine_digest,
                "errors": rejected,
                "warnings": warnings,
            }
        )
    else:
        for severity, rows in (("error", rejected), ("warning", warnings)):
            for row in rows:
                print_text(f"{severity} {row['code']} {row['pointer'] or '/'}: {row['message']}")
                if row.get("allowed") is not None:
                    print_text(f"  allowed {cell(row['allowed'])}, got {cell(row.get('actual'))}")
        note(f"{spec}: {len(rejected)} errors, {len(warnings)} warnings")
    if rejected:
        raise typer.Exit(Exit.REJECTED)


@app.command("schema")
def schema(as_json: JsonFlag = False) -> None:
    """Print the JSON Schema of specs."""
    del as_json  # a schema is JSON either way
    from worker.compiler.machine import spec_json_schema

    print_json(spec_json_schema())


@app.command("push")
def push(
    spec: Annotated[Path, typer.Argument(help="A YAML or JSON spec file.")],
    server: ServerOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Store a spec; its id can be used as the hardware of a job."""
    document = hardware_document(str(spec))
    with connect(server, data_dir) as client:
        found = client.create_hardware(document)
    if as_json:
        print_json(found)
    else:
        print_fields(found, ("id", "name", "machine_digest", "created"))
