"""`demo`: the whole road once, over HTTP, on a model that ships with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.connection import DataDirOption, load_settings
from service.cli.output import JsonFlag, note

EXAMPLE = Path(__file__).parent / "example" / "tiny_cnn.onnx"
PRESET = "stcp920-inferred"


def demo(
    hardware: Annotated[str, typer.Option(help="Preset name or spec file.")] = PRESET,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the results.")
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Start an embedded service, compile the example over HTTP, download the bundle, stop.

    The data directory persists: a second run finds every unit in the cache.
    """
    from service.cli.compiling import finish
    from service.cli.embedded import embedded_service
    from service.orders.order import hardware_document

    settings = load_settings(data_dir)
    spec = hardware_document(hardware)
    target = output or settings.data_dir / "demo"
    note(f"starting an embedded service on {settings.data_dir}")
    with embedded_service(settings.data_dir, workers=settings.workers) as url:
        note(f"listening on {url}")
        result = _compile(url, spec, target, quiet=as_json)
    finish(result, as_json=as_json)


def _compile(url: str, spec: dict[str, Any], target: Path, *, quiet: bool) -> dict[str, Any]:
    from service.cli.compiling import compile_on_server
    from service.orders.order import Order
    from worker.compiler.options import CompileOptions

    order = Order(
        model=EXAMPLE,
        hardware=spec,
        options=CompileOptions().to_json(),
        output=target,
        label="demo",
    )
    return compile_on_server(order, url, detach=False, quiet=quiet)
