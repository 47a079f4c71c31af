"""Runs inside nn_dataflow's environment: searches whole networks on one node or a mesh, one JSON
line.

    python nn_dataflow_search.py NET:BATCH[:mesh] ..

By network: the least energy, its cycles, CPU seconds of the search.  Buffers may be passed by, one
process, every layer for itself.  On a mesh: cuts of all kinds, nothing forwarded from node to node.
Its dictionaries are patched: as keys they compare keys and values apart, so that hops which were
counted for one cut are given to another.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from nn_dataflow import nns, util
from nn_dataflow.core import (
    Cost,
    MapStrategyEyeriss,
    NNDataflow,
    NodeRegion,
    Option,
    PhyDim2,
    Resource,
)

NODE = {"side": 1, "array": 16, "regf": 512, "gbuf": 131_072, "dram": float("inf")}
"""Bytes of words of 16 bits; words of DRAM a cycle."""
MESH = {"side": 16, "array": 8, "regf": 64, "gbuf": 32_768, "dram": 25.6}


def resource(of: dict[str, Any]) -> Any:
    """Nodes, and memory behind one of them or at the corners."""
    side = of["side"]
    corners = min(side, 2)
    memory = NodeRegion(
        type=NodeRegion.DRAM, origin=PhyDim2(0, 0), dim=PhyDim2(corners, corners),
        dist=PhyDim2(max(side - 1, 1), max(side - 1, 1)),
    )  # fmt: skip
    return Resource(
        proc_region=NodeRegion(
            type=NodeRegion.PROC, origin=PhyDim2(0, 0), dim=PhyDim2(side, side)
        ),
        dram_region=memory, src_data_region=memory, dst_data_region=memory,
        dim_array=PhyDim2(of["array"], of["array"]), size_gbuf=of["gbuf"] // 2,
        size_regf=of["regf"] // 2, array_bus_width=float("inf"), dram_bandwidth=of["dram"],
        no_time_mux=False,
    )  # fmt: skip


def patch() -> None:
    """Let dictionaries be equal where their pairs are."""
    kind = util.HashableDict
    kind.__eq__ = lambda a, b: dict(a) == dict(b) if isinstance(b, kind) else NotImplemented
    kind.__hash__ = lambda own: hash(frozenset(own.items()))


def searched(net: str, batch: int, *, is_mesh: bool) -> dict[str, Any]:
    began = time.process_time()
    cost = Cost(mac_op=1, mem_hier=(200, 6, 2, 1), noc_hop=10, idl_unit=0)
    options = Option(
        sw_gbuf_bypass=(True, True, True), opt_goal="e", ntops=1, nprocesses=1,
        partition_hybrid=is_mesh, partition_batch=is_mesh, partition_ifmaps=is_mesh,
    )  # fmt: skip
    machine = resource(MESH if is_mesh else NODE)
    flow = NNDataflow(nns.import_network(net), batch, machine, cost, MapStrategyEyeriss)
    tops, _ = flow.schedule_search(options)
    return {
        "energy": tops[0].total_cost,
        "cycles": tops[0].total_time,
        "cpu_s": time.process_time() - began,
    }


def main() -> None:
    rows = {}
    patch()
    for asked in sys.argv[1:]:
        net, batch, *where = asked.split(":")
        rows[asked] = searched(net, int(batch), is_mesh=bool(where))
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
