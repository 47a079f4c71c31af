"""Schedules whose programs have loops where few rows are to be listed."""

from __future__ import annotations

from lower_toys import (
    cluster_machine,
    cluster_matmul,
    flat_machine,
    fused_rows,
    gather,
    in_place,
    laned,
    naive_matmul,
    piped,
    private_rows,
    skipping,
    split_halo,
)

TREES = {
    "matmul": (naive_matmul(40, 48, 90, (2, 4, 3), 2), flat_machine()),
    "ragged": (naive_matmul(37, 50, 91, (2, 4, 3), 2), flat_machine()),
    "clusters": (cluster_matmul(2, 2, 30), cluster_machine()),
    "fused": (fused_rows(90, 8, 2), flat_machine()),
    "deep buffers": (fused_rows(120, 8, 1, copies=5), flat_machine()),
    "halo": (split_halo(40, 8), flat_machine()),
    "piped": (piped(64, 8, 2, 3, "L1"), flat_machine()),
    "skipping": (skipping(64, 8, 2, (3, 2), "L1"), flat_machine(3)),
    "in place": (in_place(80, 8, 1), flat_machine()),
    "private": (private_rows(160, 4, 1, 2, 2), cluster_machine()),
    "gather": (gather(60, 8, 16, 1), flat_machine()),
    "lanes": (laned(64, 8, 2), flat_machine()),
}
