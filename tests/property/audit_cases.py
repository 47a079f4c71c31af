"""Toy schedules, each with its machine: what lowering has to protect, in all its forms."""

from __future__ import annotations

import lower_toys as toys

CASES = {
    "naive": lambda: (toys.naive_matmul(5, 7, 6, (2, 3, 4), 2, 3), toys.flat_machine()),
    "clusters": lambda: (toys.cluster_matmul(1, 2, 2), toys.cluster_machine(1, 2)),
    "tight": lambda: (toys.fused_rows(8, 4, 2, 1), toys.flat_machine(2, 2 * 4 * 4 * 2)),
    "roomy": lambda: (toys.fused_rows(9, 3, 2, 3), toys.flat_machine()),
    "halo": lambda: (toys.split_halo(7, 3), toys.flat_machine()),
    "ring": lambda: (toys.piped(9, 3, 2, 2, "L1"), toys.flat_machine()),
    "remote": lambda: (toys.piped(7, 4, 2, 2, "LLB", 2), toys.cluster_machine()),
    "skipping": lambda: (toys.skipping(7, 3, 2, (2, 1), "L1"), toys.flat_machine(3)),
    "private": lambda: (toys.private_rows(15, 4, 2, 4, 2), toys.cluster_machine()),
    "staged": lambda: (toys.in_place(7, 4, 2), toys.flat_machine()),
    "multicast": lambda: (toys.naive_matmul(15, 6, 7, (2, 4, 3), 4), toys.multicast_machine()),
    "scalar": lambda: (toys.scalar(), toys.flat_machine()),
}
