"""Regions executed from their streams: the bytes that their C kernels give, in several orders.

Nets with convolutions, residuals, depthwise and transposed ones, pools, joins, attention; as floats
on one core and on many, and quantised; by whichever strategy wins.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import quantize_nets
from interpreted_runs import assert_counts
from region_bundles import bundled, compiled_from, made, members
from safetensors.numpy import load
from typer.testing import CliRunner

from service.cli.main import app
from worker.compiler.assembly.packing import bundle_contents
from worker.compiler.errors import InputError
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.build import find_compiler, has_fused_products
from worker.compiler.package.bundle import write_bundle
from worker.compiler.package.runtime import Origin, load_bundle
from worker.interpreter.engine import InterpretedRegion
from worker.interpreter.run import Interpreter
from worker.verification.inputs import seeded_inputs

PRESETS = ("a100", "ethos-u65", "stcp920-inferred")
NETS = (
    "chain", "residual", "depthwise", "head", "joined", "pools", "transposed", "attention",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


def packed(compiled: CompiledModel, path: Path) -> Path:
    write_bundle(path, bundle_contents(compiled, {}, b"{}", b"{}", b"\x1f\x8b"))
    return path


@cache
def compiled_net(name: str, preset: str, folder: Path) -> CompiledModel:
    net = quantize_nets.built(getattr(quantize_nets, name))
    return compiled_from(net, preset, folder, f"{name}-{preset}", "auto")


def check(compiled: CompiledModel, bundle: Path, folder: Path, seed: int) -> None:
    """The bundle's outputs are the same bytes by kernels and by streams, and so are the counts of
    streams and simulator."""
    is_fused = has_fused_products(find_compiler())
    executed: list[Interpreter] = []

    class Recording:
        def load(self, image: bytes) -> InterpretedRegion:
            executed.append(Interpreter(image, seed=seed, is_fused=is_fused))
            return InterpretedRegion(executed[-1])

    inputs = seeded_inputs(compiled.model, 3)
    want = load_bundle(bundle, folder / "build").runner.run(inputs)
    loaded = load_bundle(
        bundle, folder / "none", engine="interpreter", opened={"interpreter": Recording()}
    )
    assert loaded.origin is Origin.ENGINES and loaded.engines == ("interpreter",)
    got = loaded.runner.run(inputs)
    assert list(got) == list(want)
    for output, value in want.items():
        assert np.asarray(got[output]).tobytes() == np.asarray(value).tobytes(), output
    assert executed
    calls = 0
    for each in executed:
        for counts in each.counts:
            assert_counts(counts, each.code.units[counts.unit], compiled.machine)
            calls += 1
    assert calls >= compiled.num_kernels > 0


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", NETS)
def test_bundles_give_the_same_bytes_by_streams(name: str, preset: str, folder: Path) -> None:
    compiled = compiled_net(name, preset, folder)
    bundle = packed(compiled, folder / f"{name}-{preset}.twb")
    check(compiled, bundle, folder, seed=NETS.index(name))


@pytest.mark.parametrize("name", ["conv", "host_between", "int8", "view", "loop"])
def test_so_do_host_parts_and_nested_programs_beside_them(name: str, folder: Path) -> None:
    check(made(name, folder), bundled(name, folder), folder, seed=4)


def test_the_command_line_runs_streams(folder: Path) -> None:
    bundle, inputs = bundled("conv", folder), seeded_inputs(made("conv", folder).model, 3)
    np.savez(folder / "in.npz", **inputs)
    found = []
    for number, words in enumerate(([], ["--interpret", "7"])):
        path = folder / f"out{number}.npz"
        asked = ["run", str(bundle), "--input", str(folder / "in.npz"), "-o", str(path), *words]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 0, result.output
        assert ("no kernels ran" in result.stderr) == bool(words)
        with np.load(path) as arrays:
            found.append({name: arrays[name].tobytes() for name in arrays.files})
    assert found[0] == found[1]
    refused = CliRunner().invoke(app, [*asked, "--trust"])
    assert refused.exit_code == 3
    assert "neither --trust, --profile nor --engine" in refused.stderr


def test_weights_that_were_exchanged_are_refused(folder: Path) -> None:
    """By the stream's own digest, whatever the bundle's manifest says."""
    files = members(bundled("conv", folder))
    interpreter = Interpreter(files["regions/0/stream.bin"])
    weights = {n: v.tobytes() for n, v in load(files["weights.safetensors"]).items()}
    given = {e.name: weights.get(e.name, bytes(e.size_bytes)) for e in interpreter.code.entries}
    interpreter.run(given)
    name = next(e.name for e in interpreter.code.entries if e.sha256 is not None)
    broken = bytearray(given[name])
    broken[5] ^= 1
    with pytest.raises(InputError, match="is not the one the stream is made for"):
        interpreter.run({**given, name: bytes(broken)})
