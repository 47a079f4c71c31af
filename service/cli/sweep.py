"""`sweep`: models on machines, all of them, by a server or by a service in this command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.compiling import SymbolsOption
from service.cli.connection import DataDirOption, ServerOption, come_back, working_service
from service.cli.inputs import strategy_settings, symbol_settings
from service.cli.output import JsonFlag, note, print_json
from service.orders.order import existing_model, hardware_document


def sweep(
    models: Annotated[list[Path], typer.Argument(help=".onnx files, or .zips with external data.")],
    hardware: Annotated[
        list[str],
        typer.Option(
            "--hardware", help="Preset name or spec file; repeatable.", metavar="SPEC|PRESET"
        ),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUES",
            help="Machines that differ from the one of --hardware in this number, as `explore`"
            " takes it: /levels/SRAM/capacity_bytes=64KiB,128KiB; repeatable: every combination.",
        ),
    ] = None,
    beside: Annotated[
        bool, typer.Option("--with-base", help="With --vary: the machine as it is, too.")
    ] = False,
    explore: Annotated[
        bool,
        typer.Option(
            "--explore",
            help="With --vary: estimate every machine first, as `explore` does, over all workers;"
            " compile the best.",
        ),
    ] = False,
    costs: Annotated[
        str,
        typer.Option(
            "--front",
            help="With --explore, what is compared: latency_s, energy_pj, on_chip_bytes, area_mm2,"
            " off_chip_bytes_per_s (default all).",
        ),
    ] = "",
    winners: Annotated[
        int,
        typer.Option(
            min=0, max=20, help="With --explore, machines of each model's front that are compiled."
        ),
    ] = 3,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for sweep.json, sweep.csv and sweep.html."),
    ] = None,
    server: ServerOption = None,
    symbols: SymbolsOption = None,
    strategy: Annotated[
        str, typer.Option(help="auto (the best of all), or one by name: see `strategies`.")
    ] = "auto",
    strategy_option: Annotated[
        list[str] | None,
        typer.Option(help="An option of a strategy's own: STRATEGY.NAME=VALUE; repeatable."),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(help="latency, energy, edp, offchip or peak_memory: what is minimised."),
    ] = "latency",
    effort: Annotated[
        str, typer.Option(help="fast, normal or thorough: candidates that are simulated.")
    ] = "normal",
    precision: Annotated[
        str, typer.Option(help="native, f16, bf16, i8 or u8: number format of the accelerator.")
    ] = "native",
    verify: Annotated[str, typer.Option(help="none, sample or full.")] = "sample",
    label: Annotated[str | None, typer.Option(help="A name to find the sweep by.")] = None,
    priority: Annotated[
        int, typer.Option(min=-100, max=100, help="Of every item: higher runs first.")
    ] = 0,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit to the server and return at once.")
    ] = False,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile every model for every machine, with figures, the front and failures by item.

    Ctrl-C cancels, and keeps what has results: `sweeps resume` does the rest.  Two machines and one
    model are compared, too, as `diff` does.
    """
    from service.cli.progress import ProgressView
    from service.cli.sweep_following import finish, follow
    from service.orders.served import upload
    from worker.compiler.options import CompileOptions

    if detach and not server:
        raise typer.BadParameter("needs a server (--server URL)", param_hint="--detach")
    if vary and len(hardware) != 1:
        raise typer.BadParameter("--vary needs one machine", param_hint="--hardware")
    if beside and not vary:
        raise typer.BadParameter("needs --vary", param_hint="--with-base")
    if explore and (beside or not vary):
        raise typer.BadParameter("needs --vary, without --with-base", param_hint="--explore")
    if not explore and costs:
        raise typer.BadParameter("needs --explore", param_hint="--front")
    files = [existing_model(path) for path in models]
    specs = [hardware_document(text) for text in hardware]
    options = {
        "strategy": strategy,
        "strategy_options": strategy_settings(strategy, None, strategy_option or []),
        "objective": objective,
        "effort": effort,
        "precision": precision,
        "verify": verify,
        "symbols": symbol_settings(symbols or []),
    }
    request: dict[str, Any] = {
        "options": CompileOptions.from_json(options).to_json(),
        "priority": priority,
        "hardware": specs if beside or not vary else [],
    }
    if vary:
        request |= {"base": specs[0], "vary": vary}
    if explore:
        request["explore"] = {"winners": winners, **({"costs": costs.split(",")} if costs else {})}
    if label is not None:
        request["label"] = label
    with working_service(server, data_dir) as client:
        with ProgressView("models", quiet=as_json) as view:
            request["models"] = [str(upload(client, path, view.upload)["id"]) for path in files]
        made = client.submit_sweep(request)
        sweep_id = str(made["id"])
        if detach:
            note(f"submitted {sweep_id}; follow it with")
            come_back("sweeps watch", sweep_id, server)
            if as_json:
                print_json(made)
            return
        finish(client, follow(client, sweep_id, server, quiet=as_json), output, as_json=as_json)
