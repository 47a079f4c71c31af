"""`hardware measure-host`: rates of the machine that this runs on, as part of a spec."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.energy import resolved_document
from service.cli.failures import Failure
from service.cli.output import JsonFlag, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.host_rates.fit import Comparison

IDLE_LOAD = 0.5
"""Load average of a machine that does nothing: the command's own start, a few daemons."""


def measure_host(
    spec: Annotated[str, typer.Argument(help="Preset name, or a YAML or JSON spec file.")],
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of the runtime; else all that this process may use."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the new spec is called.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write it; else to stdout.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a spec whose host has the rates of this machine, measured with ONNX Runtime.

    Operators of real nets are run alone, float32, one after the other.  How well the fitted model
    tells them, and others that it has not seen, is printed beside the spec.  Takes a few seconds of
    a machine that should do nothing else.
    """
    import yaml

    from worker.compiler.machine import canonical_document, load_machine
    from worker.host_rates.document import processor_name, with_host
    from worker.host_rates.fit import compared, fit_host
    from worker.host_rates.measure import available_threads, busy_with, runtime, timings
    from worker.host_rates.operators import operators

    document = canonical_document(resolved_document(spec))
    most = available_threads()
    if threads is not None and threads > most:
        raise Failure("TW-OPT-001", f"--threads {threads}: this process may use {most}")
    used = threads or most
    load = busy_with()
    if load > most - used + IDLE_LOAD:
        note(f"warning: {load:.1f} programs run on {most} processors: rates will be a busy host's")
    measured = list(timings(operators(), used))
    rates = fit_host(measured)
    how = f"measured by tilewright hardware measure-host, {runtime()}, threads: {used}"
    changed = with_host(document, rates, processor_name(), how)
    if name is not None:
        changed["name"] = name
    load_machine(changed)
    rows = compared(measured, rates)
    if as_json:
        print_json({"document": changed, "operators": [_row(row) for row in rows]})
    elif output is None:
        print_text(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True, width=100))
    else:
        print_table(("operator", "use", "measured us", "predicted us", "ratio"), [
            {
                "operator": row.timing.operator.name,
                "use": row.timing.operator.role.value,
                "measured us": f"{row.timing.seconds * 1e6:,.1f}",
                "predicted us": f"{row.predicted_s * 1e6:,.1f}",
                "ratio": f"{row.ratio:.2f}",
            }
            for row in rows
        ])  # fmt: skip
    if output is not None:
        output.write_text(
            yaml.safe_dump(changed, sort_keys=False, allow_unicode=True, width=100),
            encoding="utf-8",
        )
        note(f"wrote {output}")
    note(_verdict(rows))


def _row(row: Comparison) -> dict[str, object]:
    timing = row.timing
    return {
        "name": timing.operator.name, "use": timing.operator.role.value, "flops": timing.flops,
        "bytes": timing.num_bytes, "measured_s": timing.seconds, "predicted_s": row.predicted_s,
    }  # fmt: skip


def _verdict(rows: Sequence[Comparison]) -> str:
    """How far the model is from operators that it was not fitted to."""
    from worker.host_rates.operators import Role

    held = sorted(
        (row.ratio, row.timing.operator.name)
        for row in rows
        if row.timing.operator.role is Role.HELD_OUT
    )
    mean = geometric_mean([ratio for ratio, _ in held])
    (low, fast), (high, slow) = held[0], held[-1]
    return (
        f"operators that the fit has not seen: predicted / measured {mean:.2f} in the mean,"
        f" {low:.2f} ({fast}) to {high:.2f} ({slow})"
    )
