"""Compiled models with their bundles, for the tests of region formats and of the runtime."""

from __future__ import annotations

import ctypes
import io
import subprocess
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from control_models import counted_loop
from onnx import TensorProto, helper
from onnx_models import conv_net, saved, with_host_part

from worker.compiler.assembly.packing import bundle_contents
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.package.build import find_compiler, flags_for
from worker.compiler.package.bundle import write_bundle
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress

Array = np.ndarray[Any, Any]


def relu_view() -> onnx.ModelProto:
    """relu -> flatten -> exp: two kernels and a view between them."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("Flatten", ["r"], ["f"], name="flatten"),
            helper.make_node("Exp", ["f"], ["y"], name="exp"),
        ],
        "view",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 12])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


MODELS = {
    "conv": (conv_net, "a100"),
    "host_between": (with_host_part, "a100"),
    "int8": (conv_net, "ethos-u65"),
    "view": (relu_view, "a100"),
    "loop": (counted_loop, "a100"),
}
"""name -> (model, preset)."""


@cache
def made(name: str, folder: Path) -> CompiledModel:
    """One of MODELS, compiled once per session."""
    build, preset = MODELS[name]
    return compiled_from(build(), preset, folder, name)


def compiled_from(
    model: onnx.ModelProto,
    preset: str,
    folder: Path,
    name: str = "model",
    strategy: str = "naive",
) -> CompiledModel:
    """Any model, compiled for a preset."""
    machine, options = load_preset(preset), CompileOptions(strategy=strategy)
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    path = saved(model, folder, f"{name}.onnx")
    return compile_model(path, name, machine, options, ports, Limits())


@cache
def bundled(name: str, folder: Path) -> Path:
    """Its bundle."""
    path = folder / f"{name}.twb"
    write_bundle(path, bundle_contents(made(name, folder), {}, b"{}", b"{}", b"\x1f\x8b"))
    return path


def members(bundle: Path) -> Mapping[str, bytes]:
    """Every member of a bundle by name."""
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def region_library(bundle: Path, folder: Path) -> Path:
    """All kernels and regions of a bundle, compiled as a vendor would: from its files alone."""
    root = folder / f"{bundle.stem}-c"
    with zipfile.ZipFile(io.BytesIO(bundle.read_bytes())) as archive:
        wanted = [n for n in archive.namelist() if n.endswith((".c", ".h"))]
        for name in wanted:
            archive.extract(name, root)
    layout = root / "layout.c"
    layout.write_text(
        '#include "tilewright_rt.h"\nconst int64_t tw_machine_bytes = sizeof(tw_machine);\n'
    )
    library = root / "regions.so"
    sources = [str(root / n) for n in wanted if n.endswith(".c")]
    compiler = find_compiler()
    command = [
        str(compiler), *flags_for(compiler), "-Werror", "-shared", f"-I{root / 'kernels'}",
        *sources, str(layout), "-o", str(library), "-lm",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def region_call(library: Path, function: str, machine: Any, addresses: list[int]) -> int:
    """Call a region's C function on data entries at the given addresses."""
    entry = getattr(ctypes.CDLL(str(library)), function)
    entry.restype = ctypes.c_int
    table = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
    return int(entry(ctypes.byref(machine), table))
