"""How many instructions per second the simulator times, with all its statistics on.

    python -m benchmarks.simulator_rate [--instructions 4000000] [--json]

The program is a double-buffered matrix product on every core of a preset: two loads, a compute and
a store per step, each waiting for and signalling buffers, all cores sharing the off-chip port.
The reference, measured in the same run, is numpy making one prefix sum over as many 64-bit
integers for each of the program's eight numeric fields: the cheapest pass that visits everything.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from worker.compiler.isa.program import (
    INSTRUCTION,
    MAX_RESOURCES,
    Buffer,
    Opcode,
    Operand,
    OperandRole,
    Resource,
    Stream,
    UnitProgram,
)
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.simulator.run import simulate_unit

TARGET_PER_SECOND = 5e6
_TILE_BYTES = 4096
_FIELDS = 8


def synthetic_unit(machine: Machine, num_instructions: int) -> UnitProgram:
    """Load A, load B, multiply, store C; per core, with two copies of each buffer."""
    home, inner = machine.home, machine.scratchpads[-1]
    cores = machine.num_cores
    steps = max(num_instructions // (4 * cores), 1)
    count = steps * cores * 4
    step, core, kind = (
        axis.ravel()
        for axis in np.meshgrid(np.arange(steps), np.arange(cores), np.arange(4), indexing="ij")
    )
    rows = np.zeros(count, INSTRUCTION)
    rows["opcode"] = np.choose(kind, [Opcode.LOAD, Opcode.LOAD, Opcode.COMPUTE, Opcode.STORE])
    rows["stream"] = core * 3 + np.choose(kind, [0, 0, 1, 2])
    rows["node"] = kind
    rows["op"] = np.where(kind == 2, 0, -1)
    rows["bytes"] = np.where(kind == 2, 0, _TILE_BYTES)
    rows["macs"] = np.where(kind == 2, 1 << 16, 0)
    rows["cycles"] = np.where(kind == 2, 300, 0)
    rows["latency"] = np.where(kind == 2, 0, home.latency_cycles)
    ports = np.full((count, MAX_RESOURCES), -1)
    ports[:, 0] = np.choose(kind, [0, 0, -1, 2 + 2 * core])
    ports[:, 1] = np.choose(kind, [3 + 2 * core, 3 + 2 * core, -1, 1])
    rows["resource"] = ports
    rows["src"] = np.choose(kind, [-1, -1, 0, 2])
    rows["dst"] = np.choose(kind, [0, 1, 2, -1])
    # Tokens of a core and parity: A full, B full, C full, operands free, C free.
    token = (core * 2 + step % 2) * 5
    waits = np.stack([
        np.choose(kind, [token + 3, token + 3, token, token + 2]),
        np.choose(kind, [-1, -1, token + 1, -1]),
        np.choose(kind, [-1, -1, token + 4, -1]),
    ], axis=1)  # fmt: skip
    waits[(step < 2) & (kind < 2), 0] = -1
    waits[(step < 2) & (kind == 2), 2] = -1
    signals = np.stack([
        np.choose(kind, [token, token + 1, token + 2, token + 4]),
        np.choose(kind, [-1, -1, token + 3, -1]),
    ], axis=1)  # fmt: skip
    tile = _TILE_BYTES
    buffers = tuple(
        Buffer(name, inner.name, 2 * k * tile, tile, 2, "f16", (tile // 2,), "0")
        for k, name in enumerate(("a", "b", "c"))
    )
    total = steps * cores * tile
    roles = (OperandRole.INPUT, OperandRole.CONSTANT, OperandRole.OUTPUT)
    matrix, dma_in, dma_out = (
        next(e.name for e in machine.engines if e.kind == wanted)
        for wanted in ("matrix", "dma_in", "dma_out")
    )
    return UnitProgram(
        "0" * 64,
        tuple(
            Operand(name, role, "f16", (total // 2,), total)
            for name, role in zip("abc", roles, strict=True)
        ),
        buffers,
        tuple(Stream(c, e) for c in range(cores) for e in (dma_in, matrix, dma_out)),
        (
            Resource(home.name, 0, "read", home.read_bytes_per_cycle, home.half_duplex),
            Resource(home.name, 0, "write", home.write_bytes_per_cycle, home.half_duplex),
            *(
                Resource(inner.name, c, way, rate, inner.half_duplex)
                for c in range(cores)
                for way, rate in (
                    ("read", inner.read_bytes_per_cycle), ("write", inner.write_bytes_per_cycle),
                )
            ),
        ),
        ("0.0", "0.1", "0.2", "0.3"), rows, *_csr(waits), *_csr(signals), cores * 10,
    )  # fmt: skip


def _csr(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    used = table >= 0
    pointer = np.concatenate(([0], np.cumsum(used.sum(axis=1)))).astype(np.int32)
    return pointer, table[used].astype(np.int32)


def measure(preset: str, num_instructions: int) -> dict[str, object]:
    """Simulate once small (warm-up) and once at size; measure the reference beside it."""
    machine = load_preset(preset)
    started = time.perf_counter()
    simulate_unit(synthetic_unit(machine, 1000), machine)
    warm_up = time.perf_counter() - started
    program = synthetic_unit(machine, num_instructions)
    best, sim = float("inf"), None
    for _ in range(5):
        started = time.perf_counter()
        sim = simulate_unit(program, machine)
        best = min(best, time.perf_counter() - started)
    assert sim is not None
    values = np.arange(program.num_instructions, dtype=np.int64)
    reference = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(_FIELDS):
            np.cumsum(values)
        reference = min(reference, time.perf_counter() - started)
    rate, reference_rate = (program.num_instructions / s for s in (best, reference))
    return {
        "preset": preset,
        "instructions": program.num_instructions,
        "cycles": sim.cycles,
        "checks_passed": all(check.passed for check in sim.checks),
        "warm_up_s": round(warm_up, 3),
        "simulate_s": round(best, 3),
        "instructions_per_s": round(rate),
        "reference_s": round(reference, 3),
        "ratio_to_reference": round(rate / reference_rate, 4),
        "target_per_s": int(TARGET_PER_SECOND),
        "passed": rate >= TARGET_PER_SECOND,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="stcp920-inferred")
    parser.add_argument("--instructions", type=int, default=4_000_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    row = measure(args.preset, args.instructions)
    text = json.dumps(row) if args.json else "\n".join(f"{k:20} {v}" for k, v in row.items())
    sys.stdout.write(text + "\n")
    return 0 if row["passed"] and row["checks_passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
