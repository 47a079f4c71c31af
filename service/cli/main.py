"""The root of the command line: which file holds which verb.

Exit codes: 0 ok · 1 gate failed · 2 usage · 3 input or spec rejected · 4 unsupported or
infeasible · 5 service or transient · 6 timed out, or waiting ended before the job · 7 canceled.
"""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli import (
    assemble,
    backend,
    backup,
    build,
    cache,
    certify,
    compiling,
    demo,
    diff,
    disassemble,
    doctor,
    explain,
    explore,
    export,
    gate,
    hardware,
    inspection,
    jobs,
    keys,
    links,
    mcp,
    model,
    preflight,
    run,
    serve,
    strategies,
    sweep,
    sweeps,
    validate,
    webhooks,
)
from service.cli.failures import TilewrightGroup
from service.cli.output import print_text

app = typer.Typer(
    name="tilewright",
    cls=TilewrightGroup,
    help="Compile ONNX models for your accelerator: partition, schedule, kernels, simulated run, "
    "verified.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 ok, 1 gate failed, 2 usage, 3 input rejected, 4 unsupported or "
    "infeasible, 5 service, 6 timed out, 7 canceled.",
)


def _version(asked: bool) -> None:
    if asked:
        print_text(explain.package_version())
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    del version  # its callback ends the command


app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("worker")(serve.worker)
app.command("compile")(compiling.compile_model)
app.command("preflight")(preflight.preflight)
app.add_typer(jobs.app, name="jobs")
app.command("sweep")(sweep.sweep)
app.add_typer(sweeps.app, name="sweeps")
app.command("report")(inspection.report)
app.command("layers")(inspection.layers)
app.command("placement")(inspection.placement)
app.command("schedule")(inspection.schedule)
app.command("trace")(inspection.trace)
app.command("diff")(diff.diff)
app.add_typer(hardware.app, name="hardware")
app.add_typer(backend.app, name="backend")
app.add_typer(model.app, name="model")
app.command("run")(run.run)
app.command("build")(build.build)
app.command("disassemble")(disassemble.disassemble)
app.command("assemble")(assemble.assemble)
app.command("export")(export.export)
app.add_typer(cache.app, name="cache")
app.add_typer(keys.app, name="keys")
app.add_typer(links.app, name="links")
app.add_typer(webhooks.app, name="webhooks")
app.command("explain")(explain.explain)
app.command("certify")(certify.certify)
app.command("explore")(explore.explore)
app.add_typer(gate.app, name="gate")
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("doctor")(doctor.doctor)
app.command("mcp")(mcp.mcp)
app.command("strategies")(strategies.strategies)
app.command("validate")(validate.validate)
app.command("version")(explain.version)


if __name__ == "__main__":
    app()
