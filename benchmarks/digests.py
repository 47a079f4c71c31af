"""What good models compile to, as digests: a mend that should move nothing is held to it.

    python -m benchmarks.digests before.json            # at the commit before
    python -m benchmarks.digests after.json --against before.json

Each cell (model x preset x strategy) is a fresh process; finished cells are kept, so a run can be
resumed.  With --against, cells whose cycles, schedules, programs or kernels differ are printed by
what differs, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from benchmarks.cells import Row, fill, load_ledger, run_child
from benchmarks.zoo import ZooModel, every_model, materialized
from worker.job.request import NoProgress

MODELS = (
    "basic_pitch_nmp", "bert_base_s128", "control_flow", "dtln_1", "espcn_x3", "go1_policy",
    "googlenet", "llama_decode_p127", "lstm_t32", "meshgraphnet", "mnist_cnn",
    "mnist_cnn_dynquant", "mobilenet_v1", "mobilevit_s", "nerf_p4096", "resnet18",
    "resnet18_qdq_int8", "ssdlite320_folded", "tinybert", "ultraface_rfb320", "unet_resnet34",
)  # fmt: skip
PRESETS = ("stcp920-inferred", "a100")
STRATEGIES = ("naive", "graphturbo")
COMPARED = ("cycles", "kernels", "schedules", "programs", "texts")


def run_cell(model: ZooModel, preset: str, strategy: str, scratch: Path) -> Row:
    """Compile and simulate one cell; gives digests over its units in order."""
    from worker.compiler.cache import MemoryCache
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.isa.program import UnitCall
    from worker.compiler.judge.units import unit_digest
    from worker.compiler.options import CompileOptions
    from worker.compiler.pipeline import compile_model
    from worker.job.hardware import resolve_machine
    from worker.job.ports import open_ports
    from worker.job.simulation import simulate_model

    options = CompileOptions.from_json(
        {"strategy": strategy, "verify": "none", "symbols": dict(model.symbols)}
    )
    machine, cache = resolve_machine({"preset": preset}), MemoryCache()
    ports = open_ports(machine, options, cache, NoProgress())
    path = materialized(model, scratch)
    compiled = compile_model(path, model.name, machine, options, ports, Limits())
    _, whole = simulate_model(compiled, cache)
    calls = compiled.linked.program.calls
    return {
        "cycles": whole.cycles,
        "kernels": sum(isinstance(call, UnitCall) for call in calls),
        "schedules": _digest(unit.schedule_text for unit in compiled.units),
        "programs": _digest(unit_digest(unit.program) for unit in compiled.units),
        "texts": _digest(unit.kernel for unit in compiled.units),
    }


def _digest(texts: Iterable[str]) -> str:
    found = sha256()
    for text in texts:
        found.update(f"{len(text)}:{text}".encode())
    return found.hexdigest()[:16]


def differences(before: Mapping[str, Row], after: Mapping[str, Row]) -> list[str]:
    """A line per cell that is not the same in both."""
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, {}), after.get(key, {})
        moved = [name for name in COMPARED if old.get(name) != new.get(name)]
        if moved:
            cycles = f"{old.get('cycles', 'failed')} -> {new.get('cycles', 'failed')} cycles"
            kernels = f"{old.get('kernels')} -> {new.get('kernels')} kernels"
            lines.append(f"{key}: {', '.join(moved)} ({cycles}, {kernels})")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("digests.json"))
    parser.add_argument("--against", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "tw-zoo")
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a cell")
    parser.add_argument("--cell", nargs=3, metavar=("MODEL", "PRESET", "STRATEGY"))
    args = parser.parse_args(argv)
    models = {model.name: model for model in every_model()}
    if args.cell:
        name, preset, strategy = args.cell
        row = run_cell(models[name], preset, strategy, args.scratch)
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    keys = [f"{m} {p} {s}" for m in args.only for p in args.presets for s in STRATEGIES]
    rows, failed = fill(
        args.out,
        keys,
        lambda key: run_child("benchmarks.digests", key, args.scratch, args.limit),
        jobs=args.jobs,
        after_each=lambda rows: None,
    )
    if args.against is None:
        return int(failed)
    lines = differences(
        {key: row for key, row in load_ledger(args.against).items() if key in keys},
        {key: rows[key] for key in keys},
    )
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{len(keys) - len(lines)} of {len(keys)} cells are the same\n")
    return int(bool(lines) or failed)


if __name__ == "__main__":
    raise SystemExit(main())
