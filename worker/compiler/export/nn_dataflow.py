"""nn_dataflow: a Python file per kernel with network, resource and costs.

nn_dataflow searches its own mapping: loops over channels, filters and samples around a row-
stationary array.  Tiles of rows and columns, which most of Tilewright's nests have, are nothing
that it can be given, so the mapping is not carried.  Its words are elements of the input; a
register file is the machine's register level, shared out to the units of the array.  The nest is
the layer `layer`; another follows it, since nn_dataflow takes the weights of a network that runs
all at once for loaded.
Source: the interface of nn_dataflow 2.1: its layers, resource and cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from worker.compiler.export.documents import Export, Exported, origin, plain_name
from worker.compiler.export.nest import LoopNest, NoForm, Reason, Refusal
from worker.compiler.export.untimed import untimed
from worker.compiler.export.windows import Convolution, Window, convolution
from worker.compiler.machine.machine import EngineKind, Machine, Managed, MemoryLevel


def write_nn_dataflow(nests: Sequence[LoopNest], machine: Machine) -> Export:
    """The file of every nest that is a layer on one array with register files."""
    files: list[tuple[str, str]] = []
    exported: list[Exported] = []
    refused: list[Refusal] = []
    for nest in nests:
        layer = convolution(nest)
        problem = layer if isinstance(layer, NoForm) else _problem(nest, layer, machine)
        if problem is not None:
            refused.append(problem.of(nest))
            continue
        assert isinstance(layer, Convolution)
        name = plain_name(nest.name)
        files.append((f"{name}/network.py", _module(nest, layer, machine, name)))
        exported.append(Exported(nest, name, _caveats(nest) + untimed(nest, machine)))
    return Export(tuple(sorted(files)), tuple(exported), tuple(refused))


def _problem(nest: LoopNest, layer: Convolution, machine: Machine) -> NoForm | None:
    engine = nest.engine
    if engine.kind is not EngineKind.MATRIX or len(engine.array) != 2:
        return NoForm(Reason.ARRAY, f"{engine.name} is no array of rows and columns")
    if prod(engine.array) != nest.rate:
        return NoForm(
            Reason.ARRAY, f"{engine.name} does {nest.rate:g} operations a cycle in"
            f" {nest.operands[0].dtype}, its array has {prod(engine.array)} units",
        )  # fmt: skip
    if layer.groups:
        return NoForm(Reason.OPERATOR, "channels come in groups, which nn_dataflow does not have")
    if len(layer.windows) == 1 or any(w.dilation > 1 for w in layer.windows):
        return NoForm(Reason.OPERATOR, "a window in one direction, or with spread taps (dilation)")
    if any(loop.is_spatial and loop.trip > 1 for loop in nest.loops):
        return NoForm(Reason.CORES, "cores share the layer; nn_dataflow would split it as it likes")
    if len({hold.memory for hold in nest.holds}) > 1:
        return NoForm(Reason.MEMORIES, "tiles pass several memories; nn_dataflow has one buffer")
    if _registers(machine) is None:
        return NoForm(
            Reason.MEMORIES, "the machine has no register level; nn_dataflow's units have registers"
        )
    return None


def _registers(machine: Machine) -> MemoryLevel | None:
    return next((x for x in machine.levels if x.managed is Managed.REGISTER), None)


def _caveats(nest: LoopNest) -> tuple[str, ...]:
    found = ["nn_dataflow maps for itself, row-stationary: tiles and order are its own"]
    if any(o.is_padded for o in nest.operands):
        found.append("padding is read as part of the input")
    return tuple(found)


def _module(nest: LoopNest, layer: Convolution, machine: Machine, name: str) -> str:
    assert nest.roles is not None
    registers = _registers(machine)
    assert registers is not None
    buffer = machine.level(nest.holds[-1].memory)
    element = nest.operands[nest.roles.left].dtype.size_bytes
    rows, columns = nest.engine.array
    channels, filters = layer.extent(nest, layer.channels), layer.extent(nest, layer.filters)
    if layer.windows:
        (out_h, tap_h, step_h), (out_w, tap_w, step_w) = (_side(nest, w) for w in layer.windows)
        size = (tap_h + (out_h - 1) * step_h, tap_w + (out_w - 1) * step_w)
        made = (
            f"ConvLayer({channels}, {filters}, ({out_h}, {out_w}), ({tap_h}, {tap_w}),"
            f" ({step_h}, {step_w}))"
        )
    else:
        size, made = (1, 1), f"FCLayer({channels}, {filters})"
        out_h = out_w = 1
    held = registers.capacity_bytes * registers.instances // machine.num_cores
    costs = [round(x.read_energy_pj_per_byte * element, 9)
             for x in (machine.home, buffer, registers)]  # fmt: skip
    energies = nest.engine.op_energy_pj or {}
    per_op = float(energies.get(nest.operands[nest.roles.left].dtype, 0.0))
    return f"""# {origin(nest)}

from nn_dataflow.core import (
    {made.partition("(")[0]},
    Cost,
    InputLayer,
    Network,
    NodeRegion,
    PhyDim2,
    PoolingLayer,
    Resource,
)

BATCH = {layer.extent(nest, layer.samples)}

NN = Network({name!r})
NN.set_input_layer(InputLayer({channels}, {size}))
NN.add("layer", {made})
# Weights of a network's only layer would count as on the chip already: something follows.
NN.add("next", PoolingLayer({filters}, ({out_h}, {out_w}), 1))

_ONE = NodeRegion(dim=PhyDim2(1, 1), origin=PhyDim2(0, 0), type=NodeRegion.DRAM)
RESOURCE = Resource(
    proc_region=NodeRegion(dim=PhyDim2(1, 1), origin=PhyDim2(0, 0), type=NodeRegion.PROC),
    dram_region=_ONE,
    src_data_region=_ONE,
    dst_data_region=_ONE,
    dim_array=PhyDim2({rows}, {columns}),
    size_gbuf={buffer.usable_bytes // element},
    size_regf={held // (rows * columns) // element},
    array_bus_width=float("inf"),
    dram_bandwidth={machine.home.read_bytes_per_cycle / element},
    no_time_mux=False,
)
# DRAM, buffer, array bus, registers: picojoules per word.
COST = Cost(
    mac_op={per_op},
    mem_hier=({costs[0]}, {costs[1]}, 0.0, {costs[2]}),
    noc_hop=0.0,
    idl_unit=0.0,
)
"""


def _side(nest: LoopNest, window: Window) -> tuple[int, int, int]:
    """(positions of the result, taps, stride) of one direction."""
    out = 1 if window.out is None else nest.dims[window.out].extent
    taps = 1 if window.tap is None else nest.dims[window.tap].extent
    return out, taps, window.stride
