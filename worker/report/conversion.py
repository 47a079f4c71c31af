"""What the report says of number formats and layouts inside the regions."""

from __future__ import annotations

from worker.compiler.errors import Detail
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.options import CompileOptions


def conversion_section(compiled: CompiledModel, options: CompileOptions) -> dict[str, Detail]:
    """`conversion`: the format of each target and every boundary with its noise."""
    quantised = compiled.quantised
    return {
        "targets": {
            name: {
                "dtype": str(c.dtype),
                "per_channel": c.per_channel,
                "symmetric": c.symmetric,
                "power_of_two": c.power_of_two,
                "min_sqnr_db": c.min_sqnr_db,
            }
            for name, c in sorted(compiled.conversions.items())
        },
        "calibration": options.calibration or "synthetic",
        "ranges": None if quantised.ranges is None else str(quantised.ranges),
        "kept_float": [
            {"node": row.node, "sqnr_db": row.sqnr_db} for row in quantised.sensitivities
        ],
        "corrected": [
            {"node": c.node, "moved_weights": c.moved_weights, "moved_bias": c.moved_bias}
            for c in quantised.corrected
        ],
        "equalised": [
            {"maker": e.maker, "reader": e.reader, "channels": e.channels, "span": e.span}
            for e in quantised.equalised
        ],
        "boundaries": [
            {
                "value": b.value,
                "producer_node": b.producer_node,
                "target": b.target,
                "kind": str(b.kind),
                "dtype": str(b.dtype),
                "scale": b.scale,
                "zero_point": b.zero_point,
                "elements": b.elements,
                "bytes_before": b.bytes_before,
                "bytes_after": b.bytes_after,
                "sqnr_db": b.sqnr_db,
                "sqnr_reason": b.sqnr_reason,
            }
            for b in compiled.boundaries
        ],
    }


def layout_section(compiled: CompiledModel) -> list[Detail]:
    """`layouts`: conversions at the edges of regions, packed constants, refusals."""
    return [
        {
            "region": region,
            "tensor": change.tensor,
            "from": change.from_layout,
            "to": change.to_layout,
            "kind": str(change.kind),
            "reason": change.reason,
        }
        for region, change in compiled.layouts
    ]
