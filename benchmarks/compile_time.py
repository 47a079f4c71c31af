"""How long the front end and the naive compile take, cold and warm, beside ONNX Runtime.

    python -m benchmarks.compile_time [--model resnet50] [--presets stcp920-inferred a100]
                                      [--repeat 3] [--json]

One sample is one fresh process that imports the compiler, compiles with an empty cache (cold) and
again with the cache that left (warm); between its compiles it creates an ONNX Runtime session of
the same file with all optimisations, on one thread, so that both sides see the same neighbours.
A second fresh process then compiles from the first one's cache: what a user's second command pays.

"Compile" is `compile_model`: bytes in, linked program and C kernels out; no simulation, packaging
or verification.  Importing is timed apart: it is paid once per process by either side.  The naive
path has one loop that is compiled just in time (`lower.sync`): it is read from disk, but importing
numba for it counts as cold, as does the first use of other libraries.  All figures are medians over
the samples; a ratio is the median of the ratios inside each sample.  GraphTurbo has limits of its
own: `benchmarks.compile_limits`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from benchmarks.zoo import ZOO, ZooModel, materialized

COLD_TARGET_S = 8.0
WARM_TARGET_S = 1.5
TARGET_MODEL = "resnet50"


class StageClock:
    """A progress sink that adds up seconds by stage: of the wall, or of another clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._started: dict[str, float] = {}

    def stage(self, name: str, state: str) -> None:
        now = self._clock()
        if state == "started":
            self._started[name] = now
        else:
            spent = now - self._started.pop(name)
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def units(self, solved: int, cached: int, total: int) -> None:
        del solved, cached, total

    def artifact(self, name: str, file_name: str) -> None:
        del name, file_name


def timed(call: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def sample(
    path: Path, symbols: dict[str, int], preset: str, stored: Path, strategy: str = "naive"
) -> dict[str, Any]:
    """One process: imports, cold compile, sessions, warm compile (or warm only from `stored`).

    Runs inside a child.  Leaves the cache's entries in `stored`; when the file exists already, the
    only compile is one from those entries.
    """
    result: dict[str, Any] = {"import": timed(_imports)}
    from worker.compiler.cache import MemoryCache
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.machine import load_preset
    from worker.compiler.options import CompileOptions
    from worker.compiler.pipeline import compile_model
    from worker.job.ports import open_ports

    cache = MemoryCache()
    options = CompileOptions(symbols=tuple(symbols.items()), strategy=strategy)
    machine = load_preset(preset)

    def compile_once(key: str) -> None:
        clock = StageClock()

        def compile_it() -> None:
            ports = open_ports(machine, options, cache, clock)
            compiled = compile_model(path, path.stem, machine, options, ports, Limits())
            result["units"] = len(compiled.units)

        result[key] = timed(compile_it)
        result[key]["stages_s"] = clock.seconds
        result[key]["peak_rss_mb"] = getrusage(RUSAGE_SELF).ru_maxrss / 1024

    if stored.exists():
        entries: dict[str, str] = json.loads(stored.read_text())
        cache.entries.update((k, bytes.fromhex(v)) for k, v in entries.items())
        compile_once("warm_process")
        return result
    result["ort_import"] = timed(_import_onnxruntime)
    compile_once("cold")
    sessions = [timed(lambda: _session(path, symbols))]
    compile_once("warm")
    sessions.append(timed(lambda: _session(path, symbols)))
    result["sessions"] = sessions
    stored.write_text(json.dumps({k: v.hex() for k, v in cache.entries.items()}))
    return result


def _imports() -> None:
    import worker.compiler.pipeline  # noqa: F401


def _import_onnxruntime() -> None:
    import onnxruntime  # noqa: F401


def _session(path: Path, symbols: dict[str, int]) -> object:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for name, value in symbols.items():
        options.add_free_dimension_override_by_name(name, value)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def child(
    path: Path, symbols: dict[str, int], preset: str, stored: Path, strategy: str
) -> dict[str, Any]:
    """`sample` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.compile_time", "--sample", str(path),
               json.dumps(symbols), preset, str(stored), strategy]  # fmt: skip
    root = str(Path(__file__).resolve().parent.parent)
    environment = dict(
        os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONPATH=root
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    row = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(row, dict)
    return row


def measure(
    path: Path, symbols: dict[str, int], preset: str, repeat: int, strategy: str = "naive"
) -> dict[str, Any]:
    """Medians over `repeat` pairs of fresh processes."""
    samples: list[dict[str, Any]] = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / "cache.json"
            row = child(path, symbols, preset, stored, strategy)
            again = child(path, symbols, preset, stored, strategy)
            row["warm_process"] = again["warm_process"]
            samples.append(row)
    result: dict[str, Any] = {"model": path.stem, "preset": preset, "units": samples[0]["units"]}
    for key in ("import", "ort_import", "cold", "warm", "warm_process"):
        for clock in ("wall_s", "cpu_s"):
            result[f"{key}_{clock}"] = statistics.median(row[key][clock] for row in samples)
    result["peak_rss_mb"] = max(
        row[key]["peak_rss_mb"] for row in samples for key in ("cold", "warm_process")
    )
    for clock in ("wall_s", "cpu_s"):
        sessions = [statistics.mean(s[clock] for s in row["sessions"]) for row in samples]
        result[f"ort_session_{clock}"] = statistics.median(sessions)
        for key in ("cold", "warm", "warm_process"):
            result[f"{key}_ratio_{clock[:-2]}"] = statistics.median(
                row[key][clock] / session for row, session in zip(samples, sessions, strict=True)
            )
    for key in ("cold", "warm"):
        result[f"{key}_stages_s"] = {
            stage: statistics.median(row[key]["stages_s"].get(stage, 0.0) for row in samples)
            for stage in samples[0][key]["stages_s"]
        }
    return result


def render(row: dict[str, Any]) -> str:
    """A few lines of text for one model on one preset."""
    lines = [f"{row['model']} on {row['preset']}: {row['units']} unique units"]
    lines.append(
        f"  imports {row['import_wall_s']:.2f} s wall ({row['import_cpu_s']:.2f} CPU);"
        f" importing ONNX Runtime {row['ort_import_wall_s']:.2f} s"
    )
    lines.append(
        f"  reference: ONNX Runtime session {row['ort_session_wall_s']:.2f} s wall"
        f" ({row['ort_session_cpu_s']:.2f} CPU)"
    )
    for key, label in (("cold", "cold"), ("warm", "warm"),
                       ("warm_process", "warm, new process")):  # fmt: skip
        stages = row.get(f"{key}_stages_s", {})
        split = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items())
        lines.append(
            f"  {label}: {row[f'{key}_wall_s']:.2f} s wall ({row[f'{key}_cpu_s']:.2f} CPU),"
            f" {row[f'{key}_ratio_wall']:.2f} x the session ({row[f'{key}_ratio_cpu']:.2f} CPU)"
            + (f"; {split}" if split else "")
        )
    return "\n".join(lines)


def _verdict(row: dict[str, Any]) -> bool:
    return bool(
        row["cold_wall_s"] <= COLD_TARGET_S
        and row["warm_wall_s"] <= WARM_TARGET_S
        and row["warm_process_wall_s"] <= WARM_TARGET_S
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=TARGET_MODEL, choices=[m.name for m in ZOO])
    parser.add_argument("--file", type=Path, help="an .onnx file instead of a zoo model")
    parser.add_argument("--presets", nargs="*", default=["stcp920-inferred", "a100"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sample", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.sample:
        path, symbols, preset, stored, strategy = args.sample
        row = sample(Path(path), json.loads(symbols), preset, Path(stored), strategy)
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    model = next(m for m in ZOO if m.name == args.model)
    path, symbols = _model_file(model, args.file, args.scratch)
    passed = True
    for preset in args.presets:
        row = measure(path, symbols, preset, args.repeat)
        row["passed"] = _verdict(row)
        passed = passed and row["passed"]
        sys.stdout.write((json.dumps(row) if args.json else render(row)) + "\n")
        sys.stdout.flush()
    if not args.json:
        sys.stdout.write(
            f"targets ({TARGET_MODEL}): cold <= {COLD_TARGET_S:g} s, warm <= {WARM_TARGET_S:g} s:"
            f" {'met' if passed else 'MISSED'}\n"
        )
    return 0 if passed else 1


def _model_file(model: ZooModel, file: Path | None, scratch: Path) -> tuple[Path, dict[str, int]]:
    return (file, {}) if file is not None else (materialized(model, scratch), dict(model.symbols))


if __name__ == "__main__":
    sys.exit(main())
