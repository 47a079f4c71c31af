"""SCALE-Sim: a folder per kernel with `scale.cfg`, `topology.csv` and `layout.csv`.

SCALE-Sim maps for itself: layer, array, dataflow and the three buffers' sizes are all it takes, so
the loop nest is not carried, and ragged tiles are no matter.  The dataflow is the engine's, else
weight-stationary, as Tilewright pads work up to an array of which nothing is said.  Its
buffers are the parts of the scratchpad that this kernel gives input, weights and result; its words
are elements of the input.  A convolution's padding is part of its input.
Source: the input formats of SCALE-Sim 3 (`scalesim` 3.0), its configuration and topology readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from worker.compiler.export.documents import Export, Exported, plain_name
from worker.compiler.export.nest import LoopNest, NoForm, Reason, Refusal
from worker.compiler.export.unroll import keeps_rows
from worker.compiler.export.untimed import untimed
from worker.compiler.export.windows import Convolution, convolution
from worker.compiler.machine.dataflow import Stationary
from worker.compiler.machine.machine import EngineKind, Machine

_TOPOLOGY = (
    "Layer name", "IFMAP height", "IFMAP width", "Filter height", "Filter width", "Channels",
    "Num filter", "Strides",
)  # fmt: skip
_LAYOUT_COLUMNS = 20
_WORDS_PER_KB = 1024
_DATAFLOWS = {Stationary.WEIGHT: "ws", Stationary.INPUT: "is", Stationary.OUTPUT: "os"}


def write_scalesim(nests: Sequence[LoopNest], machine: Machine) -> Export:
    """The files of every nest that SCALE-Sim has a layer and an array for."""
    files: list[tuple[str, str]] = []
    exported: list[Exported] = []
    refused: list[Refusal] = []
    for nest in nests:
        row = _topology_row(nest)
        problem = row if isinstance(row, NoForm) else _problem(nest)
        if problem is not None:
            refused.append(problem.of(nest))
            continue
        assert not isinstance(row, NoForm)
        name = plain_name(nest.name)
        files += [
            (f"{name}/scale.cfg", _configuration(nest, machine, name)),
            (f"{name}/topology.csv", _table(_TOPOLOGY, ("layer", *map(str, row)))),
            (f"{name}/layout.csv", _table(
                ("Layer name", *(f"Factor {k}" for k in range(_LAYOUT_COLUMNS))),
                ("layer", *("1",) * _LAYOUT_COLUMNS),
            )),
        ]  # fmt: skip
        exported.append(Exported(nest, name, _caveats(nest) + untimed(nest, machine)))
    return Export(tuple(sorted(files)), tuple(exported), tuple(refused))


def _problem(nest: LoopNest) -> NoForm | None:
    engine = nest.engine
    if engine.kind is not EngineKind.MATRIX or len(engine.array) != 2:
        return NoForm(Reason.ARRAY, f"{engine.name} is no array of rows and columns")
    if keeps_rows(engine):
        return NoForm(
            Reason.ARRAY, f"cells of {engine.name} keep rows, SCALE-Sim's one operand"
        )  # fmt: skip
    if prod(engine.array) != nest.rate:
        return NoForm(
            Reason.ARRAY, f"{engine.name} does {nest.rate:g} operations a cycle in"
            f" {nest.operands[0].dtype}, its array has {prod(engine.array)} units",
        )  # fmt: skip
    cores = prod(loop.trip for loop in nest.loops if loop.is_spatial)
    if cores > 1:
        return NoForm(Reason.CORES, f"{cores} cores share the layer; SCALE-Sim has one array")
    between = {hold.memory for hold in nest.holds}
    if len(between) > 1:
        return NoForm(
            Reason.MEMORIES, f"tiles pass {' and '.join(sorted(between))};"
            " SCALE-Sim has one level of buffers",
        )  # fmt: skip
    return None


def _topology_row(nest: LoopNest) -> tuple[int, ...] | NoForm:
    """Input height and width, taps down and along, channels, filters, stride."""
    layer = convolution(nest)
    if isinstance(layer, NoForm):
        return layer
    if layer.groups:
        return NoForm(Reason.OPERATOR, "channels come in groups, which SCALE-Sim does not have")
    filters, channels = layer.extent(nest, layer.filters), layer.extent(nest, layer.channels)
    rows = layer.extent(nest, layer.samples)
    if not layer.windows:
        return (rows, channels, 1, channels, 1, filters, 1)
    sides = [_side(nest, layer, k) for k in range(len(layer.windows))]
    if len(sides) == 1:
        # The other direction of an image: rows that no window slides over.
        sides = [(rows, 1, sides[0][2]), sides[0]]
    elif rows > 1:
        return NoForm(Reason.OPERATOR, f"a batch of {rows}; SCALE-Sim has single images")
    if any(w.dilation > 1 for w in layer.windows):
        return NoForm(Reason.OPERATOR, "taps are spread (dilation), SCALE-Sim's are adjacent")
    (height, taps_down, stride), (width, taps_along, stride_along) = sides
    if len(layer.windows) == 1 and stride > 1 and rows > 1:
        return NoForm(Reason.OPERATOR, "a stride along one direction only")
    if stride != stride_along:
        return NoForm(Reason.OPERATOR, f"strides {stride} and {stride_along}; SCALE-Sim has one")
    return (height, width, taps_down, taps_along, channels, filters, stride)


def _side(nest: LoopNest, layer: Convolution, k: int) -> tuple[int, int, int]:
    """(positions of the input, taps, stride) of one direction."""
    window = layer.windows[k]
    out = 1 if window.out is None else nest.dims[window.out].extent
    taps = 1 if window.tap is None else nest.dims[window.tap].extent
    return window.stride * (out - 1) + taps, taps, window.stride


def _caveats(nest: LoopNest) -> tuple[str, ...]:
    found = ["SCALE-Sim maps for itself: tiles and order are its own",
             "it counts skew, drain and the loading of weights of every fold"]  # fmt: skip
    flow = nest.engine.dataflow
    if flow is not None and not (flow.is_double_buffered or flow.is_pipelined):
        found[-1] += ", as Tilewright does of this array"
    elif flow is not None:
        found[-1] += ", which Tilewright hides where the array does"
    if any(o.is_padded for o in nest.operands):
        found.append("padding is read as part of the input")
    return tuple(found)


def _configuration(nest: LoopNest, machine: Machine, name: str) -> str:
    roles = nest.roles
    assert roles is not None
    element = nest.operands[roles.left].dtype.size_bytes
    rows, columns = nest.engine.array
    flow = nest.engine.dataflow

    def kilowords(operand: int) -> int:
        hold = nest.holds_of(operand)[-1]
        held = hold.num_elems * hold.copies * hold.dtype.size_bytes
        return max(1, ceil(held / element / _WORDS_PER_KB))

    words = max(1, int(machine.home.read_bytes_per_cycle / element))
    sections: dict[str, dict[str, object]] = {
        "general": {"run_name": name},
        "architecture_presets": {
            "ArrayHeight": rows,
            "ArrayWidth": columns,
            "IfmapSramSzkB": kilowords(roles.left),
            "FilterSramSzkB": kilowords(roles.right),
            "OfmapSramSzkB": kilowords(len(nest.operands) - 1),
            "IfmapOffset": 0,
            "FilterOffset": 10_000_000_000,
            "OfmapOffset": 20_000_000_000,
            "Dataflow": _DATAFLOWS[Stationary.WEIGHT if flow is None else flow.stationary],
            "Bandwidth": words,
            "ReadRequestBuffer": 512,
            "WriteRequestBuffer": 512,
        },
        "layout": {
            "IfmapCustomLayout": False,
            "IfmapSRAMBankBandwidth": words,
            "IfmapSRAMBankNum": 1,
            "IfmapSRAMBankPort": 1,
            "FilterCustomLayout": False,
            "FilterSRAMBankBandwidth": words,
            "FilterSRAMBankNum": 1,
            "FilterSRAMBankPort": 1,
        },
        "sparsity": {"SparsitySupport": False},
        "run_presets": {"InterfaceBandwidth": "USER", "UseRamulatorTrace": False},
    }
    blocks = [
        "\n".join((f"[{section}]", *(f"{key} = {value}" for key, value in entries.items())))
        for section, entries in sections.items()
    ]
    return "\n\n".join(blocks) + "\n"


def _table(header: Sequence[str], row: Sequence[str]) -> str:
    """SCALE-Sim wants a comma behind every field."""
    return "".join(",".join(line) + ",\n" for line in (header, row))
