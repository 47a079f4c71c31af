"""`compile`: one model on one machine, on a server or in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.connection import (
    DataDirOption,
    ServerOption,
    come_back,
    load_settings,
    quiet_logs,
)
from service.cli.exits import Exit, exit_of_job
from service.cli.failures import Failure
from service.cli.inputs import hardware_label, strategy_settings, symbol_settings
from service.cli.output import JsonFlag, note, print_json, print_problem, print_text
from service.cli.summary import print_summary
from service.cli.training import StepOrder, train_settings, write_step
from service.orders.order import Order, arrays_digest, existing_model, hardware_document

HardwareOption = Annotated[
    str, typer.Option("--hardware", help="Preset name or spec file.", metavar="SPEC|PRESET")
]
SymbolsOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Bind a symbolic dimension; repeat for more.", metavar="NAME=N"),
]

INTEGERS = frozenset({"i8", "u8"})
"""Precisions in which the updates of a step would be nothing."""


def compile_model(
    model: Annotated[Path, typer.Argument(help="An .onnx file, or a .zip with external data.")],
    hardware: HardwareOption,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for the results (default MODEL-HARDWARE)."),
    ] = None,
    server: ServerOption = None,
    local: Annotated[
        bool, typer.Option("--local", help="Compile in this process (default without a server).")
    ] = False,
    symbols: SymbolsOption = None,
    strategy: Annotated[
        str, typer.Option(help="auto (the best of all), or one by name: see `strategies`.")
    ] = "auto",
    variant: Annotated[
        str | None, typer.Option(help="Short for --strategy-option STRATEGY.variant=VALUE.")
    ] = None,
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
    max_power_w: Annotated[
        float | None, typer.Option(help="Mean power that the program may take at most, in W.")
    ] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="Time that a run may take at most, in ms.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="A heuristic that is turned off, to see what it earns; repeatable.",
            metavar="HEURISTIC",
        ),
    ] = None,
    verify: Annotated[str, typer.Option(help="none, sample or full.")] = "sample",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the verification inputs.")] = 0,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--input", help="Verify on these inputs (.npz, an array per input); default: seeded."
        ),
    ] = None,
    link: Annotated[
        Path | None,
        typer.Option(
            "--link",
            help="A vendor's kernel library (.so), whose functions run what instructions of the"
            " spec name as `call`; with --local.",
            metavar="LIBRARY",
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="native, f16, bf16, i8 or u8: number format of the accelerator.")
    ] = "native",
    calibration: Annotated[
        Path | None,
        typer.Option(help="Sample inputs (.npz) for quantisation; default: synthetic."),
    ] = None,
    ranges: Annotated[
        str,
        typer.Option(
            help="minmax, percentile, entropy, mse or auto: which values integers stand for."
        ),
    ] = "minmax",
    percentile: Annotated[
        float, typer.Option(help="Per cent of the values that --ranges percentile keeps.")
    ] = 99.99,
    correct: Annotated[
        list[str] | None,
        typer.Option(help="bias, equalise or rounding: what constants correct; repeatable."),
    ] = None,
    keep_float: Annotated[
        list[str] | None,
        typer.Option(help="A node that is not quantised; repeatable.", metavar="NODE"),
    ] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option(help="Least SQNR of every output, in dB: sensitive operators stay float."),
    ] = None,
    partition: Annotated[
        str, typer.Option(help="spec, greedy, criteria or auto: how regions are chosen.")
    ] = "spec",
    train: Annotated[
        str | None,
        typer.Option(
            help="Compile one training step of the model: mse or cross-entropy; see `model train`.",
            metavar="LOSS",
        ),
    ] = None,
    train_option: Annotated[
        list[str] | None,
        typer.Option(
            help="Of the step, as optimizer=adam or learning_rate=0.1; repeatable.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    loop_trips: Annotated[
        int, typer.Option(min=1, help="Trips assumed for loops of unknown count.")
    ] = 1,
    fail_on_fallback: Annotated[
        bool, typer.Option("--fail-on-fallback", help="Fail when an operator goes to the host.")
    ] = False,
    require_cache: Annotated[
        bool, typer.Option("--require-cache", help="Fail when something must be solved anew.")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Solve everything anew.")] = False,
    label: Annotated[str | None, typer.Option(help="Label of the server's job.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit to the server and return at once.")
    ] = False,
    print_after: Annotated[
        list[str] | None,
        typer.Option(help="Print what a stage gives; repeatable; with --local.", metavar="STAGE"),
    ] = None,
    stop_after: Annotated[
        str, typer.Option(help="Run no stage after this one; with --local.", metavar="STAGE")
    ] = "",
    verify_each: Annotated[
        bool, typer.Option("--verify-each", help="Check what every stage gives; with --local.")
    ] = False,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile a model: kernels, schedule, bundle, simulated run and report in one folder."""
    from worker.compiler.options import CompileOptions
    from worker.compiler.stages import UNWATCHED, Watch
    from worker.job.stages import NAMES

    if detach and (local or not server):
        raise typer.BadParameter("needs a server (--server URL)", param_hint="--detach")
    if inputs is not None and verify == "none":
        raise typer.BadParameter("contradicts --verify none", param_hint="--input")
    if require_cache and no_cache:
        raise typer.BadParameter("contradicts --no-cache", param_hint="--require-cache")
    watch = Watch.of(NAMES, print_after or (), stop_after, verify_each)
    if watch != UNWATCHED and server and not local:
        raise typer.BadParameter(
            "looks into a compile on this machine; add --local",
            param_hint="--print-after, --stop-after, --verify-each",
        )
    folder = output or Path(f"{model.stem}-{hardware_label(hardware)}")
    if train is not None:
        wanted = train_settings(train, train_option or [])
        if precision in INTEGERS:
            raise typer.BadParameter("a step is not quantised", param_hint="--precision")
        step, first = folder / f"{model.stem}-step.onnx", None
        if inputs is None and verify != "none":
            inputs = first = folder / "inputs.npz"
        existing_model(model)
        write_step(StepOrder(model, wanted, symbol_settings(symbols or []), step, first, seed))
        # The step's dimensions are bound.
        model, symbols = step, None
    elif train_option:
        raise typer.BadParameter("changes nothing without --train", param_hint="--train-option")
    document = {
        "strategy": strategy,
        "strategy_options": strategy_settings(strategy, variant, strategy_option or []),
        "objective": objective,
        "effort": effort,
        "max_power_w": max_power_w,
        "max_latency_ms": max_latency_ms,
        "without": without or [],
        "verify": verify,
        "seed": seed,
        "precision": precision,
        "quantization": {
            "ranges": ranges,
            "percentile": percentile,
            "corrections": correct or [],
            "keep_float": keep_float or [],
            "min_sqnr": min_sqnr,
        },
        "partition": partition,
        "loop_trips": loop_trips,
        "calibration": arrays_digest(calibration, "calibration file") if calibration else "",
        "inputs": arrays_digest(inputs, "file of inputs") if inputs else "",
        "link": arrays_digest(link, "kernel library") if link else "",
        "symbols": symbol_settings(symbols or []),
        "fail_on_fallback": fail_on_fallback,
        "require_cache": require_cache,
        "no_cache": no_cache,
    }
    order = Order(
        model=existing_model(model),
        hardware=hardware_document(hardware),
        options=CompileOptions.from_json(document).to_json(),
        output=folder,
        label=label,
        calibration=calibration,
        inputs=inputs,
        link=link,
        watch=watch,
    )
    if server and not local:
        result = compile_on_server(order, server, detach=detach, quiet=as_json)
    else:
        result = _compile_here(order, data_dir, quiet=as_json)
    finish(result, as_json=as_json)


def _compile_here(order: Order, data_dir: Path | None, *, quiet: bool) -> dict[str, Any]:
    from service.cli.progress import ProgressView
    from service.orders.here import compile_here

    quiet_logs()
    with ProgressView(order.model.name, quiet=quiet) as view:
        return compile_here(order, load_settings(data_dir), view)


def compile_on_server(order: Order, server: str, *, detach: bool, quiet: bool) -> dict[str, Any]:
    """Upload, submit, wait, download; gives the job document with the files."""
    from service.cli.jobs import detaching
    from service.cli.progress import ProgressView
    from service.client import Client
    from service.orders.served import submit

    with Client(server) as client, ProgressView(order.model.name, quiet=quiet) as view:
        job = submit(client, order, view.upload)
        job_id = str(job["id"])
        if detach:
            note(f"submitted {job_id}; follow it with")
            come_back("jobs watch", job_id, server)
            return job
        with detaching(job_id, server):
            ended = client.wait(job_id, on_update=view.job)
        files = client.fetch_artifacts(job_id, order.output)
    return {**ended, **_files(order.output, files)}


def _files(output: Path, files: dict[str, Path]) -> dict[str, Any]:
    return {
        "output_dir": str(output),
        "files": {name: str(path) for name, path in sorted(files.items())},
    }


def finish(result: dict[str, Any], *, as_json: bool) -> None:
    """Print a compile's result and end with its exit code.

    Raises:
        typer.Exit: unless the job succeeded or was only submitted.
    """
    from worker.job.stages import AFTER, NAMES

    if as_json:
        print_json(result)
    if result["state"] == "queued":
        return
    files = result.get("files", {})
    report = files.get("report")
    if not as_json:
        for path in (files[AFTER + name] for name in NAMES if AFTER + name in files):
            print_text(Path(path).read_text(encoding="utf-8").rstrip("\n"))
    if not as_json and result["state"] == "succeeded":
        stopped = (result.get("summary") or {}).get("stopped_after")
        if stopped:
            note(f"stopped after {stopped}")
        elif report is None:
            raise Failure("TW-INT-001", "the job succeeded but has no report")
        else:
            run = json.loads(Path(files["run"]).read_bytes()) if "run" in files else {}
            print_summary(json.loads(Path(report).read_bytes()), run)
    if result.get("files"):
        note(f"results in {result['output_dir']}: {', '.join(sorted(result['files']))}")
    if result["state"] != "succeeded" and isinstance(result.get("error"), dict):
        print_problem(result["error"])
    code = exit_of_job(result)
    if code != Exit.OK:
        raise typer.Exit(code)
