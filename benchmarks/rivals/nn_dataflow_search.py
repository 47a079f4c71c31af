"""Runs inside nn_dataflow's environment: searches whole networks on one node, one JSON line.

    python nn_dataflow_search.py NET:BATCH ..

By network: the least energy, its cycles, CPU seconds of the search.  Buffers may be passed by, one
process, every layer for itself.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from nn_dataflow import nns
from nn_dataflow.core import (
    Cost,
    MapStrategyEyeriss,
    NNDataflow,
    NodeRegion,
    Option,
    PhyDim2,
    Resource,
)

NODE = {"array": 16, "regf": 512, "gbuf": 131_072}
"""Bytes of words of 16 bits."""


def resource() -> Any:
    """One node behind one memory, of bandwidth without limit."""
    whole = {"origin": PhyDim2(0, 0), "dim": PhyDim2(1, 1)}
    memory = NodeRegion(type=NodeRegion.DRAM, **whole)
    return Resource(
        proc_region=NodeRegion(type=NodeRegion.PROC, **whole), dram_region=memory,
        src_data_region=memory, dst_data_region=memory,
        dim_array=PhyDim2(NODE["array"], NODE["array"]), size_gbuf=NODE["gbuf"] // 2,
        size_regf=NODE["regf"] // 2, array_bus_width=float("inf"), dram_bandwidth=float("inf"),
        no_time_mux=False,
    )  # fmt: skip


def searched(net: str, batch: int) -> dict[str, Any]:
    began = time.process_time()
    cost = Cost(mac_op=1, mem_hier=(200, 6, 2, 1), noc_hop=10, idl_unit=0)
    options = Option(sw_gbuf_bypass=(True, True, True), opt_goal="e", ntops=1, nprocesses=1)
    flow = NNDataflow(nns.import_network(net), batch, resource(), cost, MapStrategyEyeriss)
    tops, _ = flow.schedule_search(options)
    return {
        "energy": tops[0].total_cost,
        "cycles": tops[0].total_time,
        "cpu_s": time.process_time() - began,
    }


def main() -> None:
    rows = {}
    for asked in sys.argv[1:]:
        net, batch = asked.split(":")
        rows[asked] = searched(net, int(batch))
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
