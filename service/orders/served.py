"""An order given to a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from service.orders.beside import with_external_data
from service.orders.order import Order

if TYPE_CHECKING:
    from service.client.client import Client, Document
    from service.client.uploads import Progress


def submit(client: Client, order: Order, progress: Progress | None = None) -> Document:
    """Upload the model and the arrays and submit the job; gives its document.

    Raises:
        ApiError: the server refuses, or is not there.
        ModelError: TW-MODEL-010, files that the model names are not beside it.
        OptionError: TW-LINK-008, it names a kernel library.
    """
    from worker.compiler.options import CompileOptions, require_unlinked

    require_unlinked(CompileOptions.from_json(order.options))
    uploaded = upload(client, order.model, progress)
    for arrays in (order.calibration, order.inputs):
        if arrays is not None:
            client.upload_arrays(arrays)
    request: Document = {
        "model": uploaded["id"],
        "hardware": order.hardware,
        "options": order.options,
    }
    if order.label is not None:
        request["label"] = order.label
    return client.submit(request)


def upload(client: Client, model: Path, progress: Progress | None = None) -> Document:
    """Upload a model with the files that it names; gives its document.

    Raises:
        ApiError: the server refuses, or is not there.
        ModelError: TW-MODEL-010, files that the model names are not beside it.
    """
    with with_external_data(model) as path:
        return client.upload_model(path, progress=progress)
