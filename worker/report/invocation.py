"""The `invocation` section of the report: what one run spends its time on."""

from __future__ import annotations

from worker.compiler.errors import Detail
from worker.compiler.judge.compiled import CompiledModel
from worker.simulator.results import ModelSimulation


def invocation_section(compiled: CompiledModel, whole: ModelSimulation) -> dict[str, Detail]:
    """Cycles and percentages of launch, transfer, execution and host, in all and by region."""
    split = whole.invocation
    cycles = {
        "launch": split.launch_cycles,
        "transfer": split.transfer_cycles,
        "execute": split.execute_cycles,
        "host": split.host_cycles,
    }
    targets = [part.target for part in compiled.partitioning.regions]
    return {
        **{f"{name}_cycles": spent for name, spent in cycles.items()},
        "shares_pct": {
            name: 100.0 * spent / whole.cycles if whole.cycles else 0.0
            for name, spent in cycles.items()
        },
        "regions": [
            {
                "index": row.region,
                "target": targets[row.region],
                "launch_cycles": row.launch_cycles,
                "transfer_cycles": row.transfer_cycles,
                "execute_cycles": row.execute_cycles,
            }
            for row in split.regions
        ],
    }
