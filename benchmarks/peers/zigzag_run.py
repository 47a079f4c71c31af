"""Runs inside ZigZag's environment: prices every exported kernel, one JSON line.

    python zigzag_run.py FOLDER

By kernel: cycles, and bytes read and written per memory.  Transfers between the innermost memories
and the array are left out: Tilewright has none.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from zigzag.api import get_hardware_performance_zigzag
from zigzag.mapping.data_movement import DataDirection

_READS = (DataDirection.RD_OUT_TO_LOW, DataDirection.RD_OUT_TO_HIGH)
_TO_ARRAY = (DataDirection.RD_OUT_TO_LOW, DataDirection.WR_IN_BY_LOW)


def priced(folder: Path) -> dict[str, Any]:
    """Cycles and bytes of one kernel."""
    with tempfile.TemporaryDirectory() as scratch:
        _, cycles, found = get_hardware_performance_zigzag(
            workload=str(folder / "workload.yaml"),
            accelerator=str(folder / "hardware.yaml"),
            mapping=str(folder / "mapping.yaml"),
            opt="latency",
            dump_folder=scratch,
            pickle_filename=f"{scratch}/all.pickle",
            loma_show_progress_bar=False,
        )
    # Stages nest their answers: the evaluation is the first of the innermost pair.
    evaluation: Any = found
    while isinstance(evaluation, list | tuple):
        nested = [x for x in evaluation if isinstance(x, list | tuple)]
        direct = [x for x in evaluation if hasattr(x, "memory_word_access")]
        kernels = [x for x in direct if hasattr(x, "temporal_mapping")]
        evaluation = kernels[0] if kernels else nested[0]
    moved: Counter[str] = Counter()
    links = evaluation.layer.memory_operand_links
    for operand, levels in evaluation.memory_word_access.items():
        memory_operand = links.layer_to_mem_op(operand)
        for k, accesses in enumerate(levels):
            level = evaluation.accelerator.get_memory_level(memory_operand, k)
            name = level.memory_instance.name.removesuffix(f"_{memory_operand}")
            for way in DataDirection:
                if not accesses.get(way) or (k == 0 and way in _TO_ARRAY):
                    continue
                bits = accesses.get(way) * level.get_max_bandwidth(memory_operand, way)
                moved[f"{name}.{'read' if way in _READS else 'write'}"] += bits / 8
    return {
        "cycles": float(cycles),
        "bytes": dict(moved),
        "loops": {
            str(op): str(x) for op, x in evaluation.temporal_mapping.mapping_dic_origin.items()
        },
    }


def main() -> None:
    logging.disable(logging.CRITICAL)
    rows = {p.name: priced(p) for p in sorted(Path(sys.argv[1]).iterdir()) if p.is_dir()}
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
