"""One long cold job on two workers, with and without the idle one's help.

The model is a chain of convolutions of different shapes, made here, so that few units are alike:
a job that searches for long, whose two ends have little in common.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.load.sites import busy_s, site
from service.client import Client

CHIP = "stcp920-inferred"
Row = dict[str, Any]
_WAIT_S = 1800.0


def long_search(layers: int) -> onnx.ModelProto:
    """A chain of so many convolutions, each with other numbers of channels, weights all ones."""
    nodes, weights, channels, name = [], [], 3, "x"
    for k in range(layers):
        wider = 16 + 8 * k
        ones = np.ones((wider, channels, 3, 3), np.float32)
        weights.append(numpy_helper.from_array(ones, f"w{k}"))
        nodes.append(
            helper.make_node("Conv", [name, f"w{k}"], [f"c{k}"], name=f"conv{k}", pads=[1] * 4)
        )
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], name=f"relu{k}"))
        name, channels = f"r{k}", wider
    graph = helper.make_graph(
        nodes, "long_search",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 56, 56])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 56, 56])],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def measure_help(folder: Path, *, help_from_s: float | None, layers: int, workers: int = 2) -> Row:
    """The job alone on its workers, all caches empty; `help_from_s` as in the settings."""
    folder.mkdir(parents=True)
    model = folder / "long_search.onnx"
    onnx.save(long_search(layers), model)
    with (
        site("postgres", folder / "site", workers=workers, help_from_s=help_from_s) as made,
        Client(made.server.url, key=made.key) as client,
    ):
        uploaded = client.upload_model(model)["id"]
        before, began = busy_s(), time.monotonic()
        options = {"verify": "none"}
        asked = {"model": uploaded, "hardware": {"preset": CHIP}, "options": options}
        job = client.wait(str(client.submit(asked)["id"]), timeout_s=_WAIT_S)
        seconds = time.monotonic() - began
        time.sleep(1.0)  # the helper's payload ends
        busy = busy_s()  # of everything: a payload that was killed is nobody's child by then
        if job["state"] != "succeeded":
            raise RuntimeError(f"the job is {job['state']}")
        (bundle,) = [a for a in client.artifacts(str(job["id"])) if a["name"] == "bundle"]
        run: Any = client.get(f"/v1/jobs/{job['id']}/run")
        units: Any = job["progress"]
        return {
            "layers": layers, "seconds": seconds, "digest": bundle["sha256"],
            "cpu_s": busy - before, "solved": units["units_solved"],
            "found": units["units_cached"], "schedule_s": run["timings"]["schedule"],
        }  # fmt: skip
