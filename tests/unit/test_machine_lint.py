"""Every rule of the hardware lint refuses what it should, at the right place, all at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from worker.compiler.errors import Finding, SpecError
from worker.compiler.machine import (
    canonical_document,
    lint_document,
    load_machine,
    parse_document,
    preset_document,
)
from worker.compiler.machine.lint.mesh import MESH_RULES
from worker.compiler.machine.lint.rules import RULES, SpecReader

Document = dict[str, Any]


def tiny() -> Document:
    """A small valid document, numbers plain."""
    level = {"read_bytes_per_cycle": 8, "write_bytes_per_cycle": 8, "latency_cycles": 1}
    return {
        "name": "tiny",
        "clock_hz": 1e9,
        "num_cores": 4,
        "num_clusters": 2,
        "launch_latency_cycles": 10,
        "levels": [
            {"name": "DDR", "capacity_bytes": 1 << 30, "instances": 1, **level},
            {"name": "L2", "capacity_bytes": 1 << 20, "instances": 1, "managed": "cache", **level},
            {"name": "L1", "capacity_bytes": 1 << 16, "instances": 4, **level},
        ],
        "engines": [
            {"name": "MM", "kind": "matrix", "memory": "L1", "macs_per_cycle": {"f32": 16},
             "array": [4, 4]},
            {"name": "VEC", "kind": "vector", "memory": "L1",
             "macs_per_cycle": {"f32": 4, "i64": 1}},
            {"name": "IN", "kind": "dma_in", "memory": "L1"},
            {"name": "OUT", "kind": "dma_out", "memory": "L1"},
        ],
        "links": [
            {"name": "NOC", "src": "L1", "dst": "L1", "kind": "noc", "bytes_per_cycle": 4,
             "latency_cycles": 2},
        ],
        "host": {
            "name": "cpu", "flops_per_s": 1e9, "memory_bytes_per_s": 1e9, "link_bytes_per_s": 1e9,
            "link_latency_s": 1e-6, "launch_overhead_s": 1e-6,
        },
        "capabilities": {
            "dtypes": ["f32", "i64"], "max_rank": 6, "groups": ["broad"],
            "ops": [{"op_type": "Conv", "limits": {"kernel_h": {"min": 1, "max": 7}}}],
        },
    }  # fmt: skip


def edit(pointer: str, value: object) -> Callable[[Document], None]:
    def apply(document: Document) -> None:
        *path, last = pointer.split("/")[1:]
        target: Any = document
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            target[int(last)] = value
        else:
            target[last] = value

    return apply


def drop(pointer: str) -> Callable[[Document], None]:
    def apply(document: Document) -> None:
        *path, last = pointer.split("/")[1:]
        target: Any = document
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        del target[int(last) if isinstance(target, list) else last]

    return apply


def both(*changes: Callable[[Document], None]) -> Callable[[Document], None]:
    def apply(document: Document) -> None:
        for change in changes:
            change(document)

    return apply


def with_registers(*changes: Callable[[Document], None]) -> Callable[[Document], None]:
    """Give the document a level of registers, and change something."""

    def apply(document: Document) -> None:
        document["levels"].append({
            "name": "REG", "capacity_bytes": 1 << 14, "instances": 4, "managed": "register",
            "read_bytes_per_cycle": 64, "write_bytes_per_cycle": 64, "latency_cycles": 1,
        })  # fmt: skip
        both(*changes)(document)

    return apply


def rows(**fields: object) -> Callable[[Document], None]:
    """Give the document registers, and its array rows to keep in them; `fields` of the dataflow."""

    def apply(document: Document) -> None:
        level = {**document["levels"][2], "name": "REG", "managed": "register"}
        document["levels"].append(level)
        flow = {"stationary": "row", "registers": "REG", **fields}
        document["engines"][0]["dataflow"] = flow

    return apply


def targets(pointer: str, value: object) -> Callable[[Document], None]:
    """Give the document two targets, `big` and `small`, and change one thing in them."""

    def split(document: Document) -> None:
        offered = document.pop("capabilities")
        document["targets"] = [
            {"name": name, "capabilities": deepcopy(offered)} for name in ("big", "small")
        ]

    return both(split, edit(pointer, value))


def attributes(name: str, rule: object) -> Callable[[Document], None]:
    return edit("/capabilities/ops/0/attributes", {name: rule})


def layout(
    activations: str, weights: str = "OIHW", op_types: list[str] | None = None
) -> Callable[[Document], None]:
    return edit("/capabilities/layout", {
        "activations": activations, "weights": weights, "op_types": op_types or ["Conv"],
    })  # fmt: skip


REFUSALS: list[tuple[str, Callable[[Document], None], str, str, str]] = [
    # name, edit, code, pointer, part of the message
    ("zero bandwidth", edit("/levels/0/read_bytes_per_cycle", 0), "TW-SPEC-001",
     "/levels/0/read_bytes_per_cycle", "must be >= 1e-06"),
    ("zero bandwidth, tagged", edit("/levels/0/read_bytes_per_cycle", {"value": 0, "tag": "G"}),
     "TW-SPEC-001", "/levels/0/read_bytes_per_cycle", "must be >= 1e-06"),
    ("negative", edit("/levels/2/latency_cycles", -1), "TW-SPEC-001", "/levels/2/latency_cycles",
     ">= 0"),
    ("nan", edit("/clock_hz", math.nan), "TW-SPEC-001", "/clock_hz", "nan"),
    ("infinite", edit("/host/link_bytes_per_s", math.inf), "TW-SPEC-001", "/host/link_bytes_per_s",
     "inf"),
    ("absurd", edit("/clock_hz", 1e15), "TW-SPEC-001", "/clock_hz", "nearest preset value"),
    ("fractional count", edit("/num_cores", 2.5), "TW-SPEC-001", "/num_cores", "integer"),
    ("text for a number", edit("/clock_hz", "fast"), "TW-SPEC-001", "/clock_hz",
     "must be a number"),
    ("bool for a number", edit("/num_cores", True), "TW-SPEC-001", "/num_cores",
     "must be a number"),
    ("unknown key", edit("/levels/0/capactiy", 1), "TW-SPEC-001", "/levels/0/capactiy",
     "did you mean capacity_bytes?"),
    ("missing field", drop("/levels/0/capacity_bytes"), "TW-SPEC-001", "/levels/0/capacity_bytes",
     "missing"),
    ("two ways to give targets", edit("/targets", [{"name": "npu"}]), "TW-SPEC-002", "/targets",
     "both capabilities and targets"),
    ("unknown tag", edit("/clock_hz", {"value": 1e9, "tag": "Z"}), "TW-SPEC-001", "/clock_hz/tag",
     "tag"),
    ("unknown dtype", edit("/engines/0/macs_per_cycle", {"f31": 4}), "TW-SPEC-001",
     "/engines/0/macs_per_cycle/f31", "f31"),
    ("hostile name", edit("/levels/2/name", 'L1"; rm'), "TW-SPEC-001", "/levels/2/name", "name"),
    ("duplicate name", edit("/levels/1/name", "L1"), "TW-SPEC-002", "/levels/2/name",
     "already used at /levels/1"),
    ("engine in unknown level", edit("/engines/0/memory", "L3"), "TW-SPEC-002",
     "/engines/0/memory", "does not exist"),
    ("link to unknown level", edit("/links/0/dst", "L9"), "TW-SPEC-002", "/links/0/dst",
     "does not exist"),
    ("link to itself", edit("/links/0/kind", "bus"), "TW-SPEC-002", "/links/0/dst", "to itself"),
    ("multicast to one instance a cluster",
     both(edit("/links/0/multicast", {"value": True, "tag": "G"}),
          edit("/num_clusters", 4)), "TW-SPEC-002", "/links/0/multicast", "changes nothing at NOC"),
    ("multicast to one instance",
     both(edit("/links/0/multicast", True), edit("/links/0/dst", "L2"),
          edit("/links/0/src", "DDR"), edit("/levels/1/instances", 1)), "TW-SPEC-002",
     "/links/0/multicast", "reaches one instance of L2"),
    ("multicast is no word", edit("/links/0/multicast", "yes"), "TW-SPEC-001",
     "/links/0/multicast", "bool"),
    ("instances do not divide", edit("/levels/2/instances", 3), "TW-SPEC-002",
     "/levels/2/instances", "cannot be shared evenly"),
    ("clusters do not divide", edit("/num_clusters", 3), "TW-SPEC-002", "/num_clusters",
     "cannot share"),
    ("capacity below one element", edit("/levels/2/capacity_bytes", 4), "TW-SPEC-002",
     "/levels/2/capacity_bytes", "cannot hold one i64 element of 8 bytes"),
    ("alignment", edit("/levels/2/align_bytes", 24), "TW-SPEC-002", "/levels/2/align_bytes",
     "power of two"),
    ("bursts of a scratchpad", edit("/levels/2/burst_bytes", 64), "TW-SPEC-002",
     "/levels/2/burst_bytes", "without gaps"),
    ("a burst of nothing", edit("/levels/0/burst_bytes", 0), "TW-SPEC-001",
     "/levels/0/burst_bytes", "1"),
    ("registers sustain nothing", edit("/levels", [
        *tiny()["levels"], {**tiny()["levels"][2], "name": "REG", "managed": "register",
                            "sustained_fraction": 0.5}]), "TW-SPEC-002",
     "/levels/3/sustained_fraction", "do not reach registers"),
    ("sums in a scratchpad", edit("/engines/0/accumulators", "L1"), "TW-SPEC-002",
     "/engines/0/accumulators", "L1 is neither"),
    ("sums of a DMA engine", with_registers(edit("/engines/2/accumulators", "REG")), "TW-SPEC-002",
     "/engines/2/accumulators", "sums nothing up"),
    ("sums in an unknown level", edit("/engines/0/accumulators", "REG"), "TW-SPEC-002",
     "/engines/0/accumulators", "does not exist"),
    ("registers that cores share", with_registers(edit("/engines/0/accumulators", "REG"),
                                                  edit("/num_cores", 8)), "TW-SPEC-002",
     "/levels/3/instances", "each core has one"),
    ("sustains more than all", edit("/levels/0/sustained_fraction", 1.1), "TW-SPEC-001",
     "/levels/0/sustained_fraction", "<= 1"),
    ("capacities out of order", edit("/levels/2/capacity_bytes", 1 << 21), "TW-SPEC-002",
     "/levels/2/capacity_bytes", "out of order"),
    ("home is a cache", edit("/levels/0/managed", "cache"), "TW-SPEC-002", "/levels/0/managed",
     "home of whole tensors"),
    ("two homes", edit("/levels/0/instances", 2), "TW-SPEC-002", "/levels/0/instances",
     "one address space"),
    ("no scratchpad", edit("/levels/2/managed", "cache"), "TW-SPEC-002", "/levels",
     "no scratchpad"),
    ("no vector engine", drop("/engines/1"), "TW-SPEC-002", "/engines", "no vector engine"),
    ("no dma out", drop("/engines/3"), "TW-SPEC-002", "/engines", "no dma_out engine"),
    ("engine at home", edit("/engines/0/memory", "DDR"), "TW-SPEC-002", "/engines/0/memory",
     "scratchpad below the home"),
    ("engine without rate", edit("/engines/0/macs_per_cycle", {}), "TW-SPEC-002",
     "/engines/0/macs_per_cycle", "needs a rate"),
    ("dma with rate", edit("/engines/2/macs_per_cycle", {"f32": 1}), "TW-SPEC-002",
     "/engines/2/macs_per_cycle", "computes nothing"),
    ("dtype without engine", edit("/capabilities/dtypes", ["f32", "bf16"]), "TW-SPEC-002",
     "/capabilities/dtypes/1", "no engine has a rate"),
    ("misspelt op", edit("/capabilities/ops/0/op_type", "Covn"), "TW-SPEC-002",
     "/capabilities/ops/0/op_type", "did you mean Conv?"),
    ("unknown group", edit("/capabilities/groups", ["broda"]), "TW-SPEC-002",
     "/capabilities/groups/0", "did you mean broad?"),
    ("unknown limit", edit("/capabilities/ops/0/limits", {"kernel": {"min": 1, "max": 2}}),
     "TW-SPEC-002", "/capabilities/ops/0/limits/kernel", "cannot be limited|not a quantity"),
    ("limits reversed", edit("/capabilities/ops/0/limits/kernel_h", {"min": 3, "max": 2}),
     "TW-SPEC-002", "/capabilities/ops/0/limits/kernel_h/max", "below the minimum"),
    ("special rate of a matrix engine", edit("/engines/0/special_ops_per_cycle", 4),
     "TW-SPEC-002", "/engines/0/special_ops_per_cycle", "nothing reads this rate"),
    ("hardly any special rate", edit("/engines/1/special_ops_per_cycle", 1e-300),
     "TW-SPEC-001", "/engines/1/special_ops_per_cycle", "must be 0, or >= 1e-06"),
    ("unknown operation of a stage", edit("/engines/1/output_stage", {"softmax": {"f32": 4}}),
     "TW-SPEC-001", "/engines/1/output_stage/softmax", "'lookup'"),
    ("unknown format of a stage", edit("/engines/1/output_stage", {"bias": {"f31": 4}}),
     "TW-SPEC-001", "/engines/1/output_stage/bias/f31", "f31"),
    ("rate of a stage", edit("/engines/1/output_stage", {"bias": {"f32": 0}}),
     "TW-SPEC-001", "/engines/1/output_stage/bias/f32", "must be >= 1e-06"),
    ("stage without formats", edit("/engines/1/output_stage", {"bias": {}}),
     "TW-SPEC-002", "/engines/1/output_stage/bias", "in no number format"),
    ("stage of a matrix engine", edit("/engines/0/output_stage", {"bias": {"f32": 4}}),
     "TW-SPEC-002", "/engines/0/output_stage", "never asked"),
    ("gap above the latency", edit("/launch_gap_cycles", 11), "TW-SPEC-002",
     "/launch_gap_cycles", "later than the 10 that it takes"),
    ("gap of a target above its latency", targets("/targets/1/launch_gap_cycles", 11),
     "TW-SPEC-002", "/targets/1/launch_gap_cycles", "later than the 10 that it takes"),
    ("split field beside a new one", edit("/launch_overhead_cycles", 10), "TW-SPEC-001",
     "/launch_overhead_cycles", "leave launch_overhead_cycles out"),
    ("lifted field out of range", both(drop("/launch_latency_cycles"),
                                       edit("/launch_overhead_cycles", -1)), "TW-SPEC-001",
     "/launch_overhead_cycles", ">= 0"),
    ("dataflow of a vector engine", edit("/engines/1/dataflow", {"stationary": "weight"}),
     "TW-SPEC-002", "/engines/1/dataflow", "a vector engine has none"),
    ("systolic array of one dimension", both(
        edit("/engines/0/array", [4]), edit("/engines/0/dataflow", {"stationary": "weight"})),
     "TW-SPEC-002", "/engines/0/dataflow/systolic", "the array has 1 dimensions"),
    ("accumulators of an array that keeps sums", edit("/engines/0/dataflow", {
        "stationary": {"value": "output", "tag": "G"}, "accumulator_bytes": 64}), "TW-SPEC-002",
     "/engines/0/dataflow/accumulator_bytes", "nothing reads this"),
    ("folds follow each other where nothing is between", edit("/engines/0/dataflow", {
        "stationary": "weight", "systolic": False, "pipelined": True}), "TW-SPEC-002",
     "/engines/0/dataflow/pipelined", "nothing reads this"),
    ("fold of a part of the array", edit("/engines/0/dataflow", {
        "stationary": "output", "systolic": False, "hold": [8, 6]}), "TW-SPEC-002",
     "/engines/0/dataflow/hold", "whole steps of the array"),
    ("systolic cells that hold more", edit("/engines/0/dataflow", {
        "stationary": "output", "hold": [8, 8]}), "TW-SPEC-002",
     "/engines/0/dataflow/hold", "holds one element"),
    ("rows of a line of cells", both(edit("/engines/0/array", [4]), rows()), "TW-SPEC-002",
     "/engines/0/dataflow/stationary", "the array has 1 dimensions"),
    ("rows of too many cells", both(edit("/engines/0/array", [128, 64]), rows()), "TW-SPEC-002",
     "/engines/0/dataflow/stationary", "8192 cells has too many ways"),
    ("rows shifted in like folds", rows(systolic=True), "TW-SPEC-002",
     "/engines/0/dataflow/systolic", "nothing is loaded fold by fold"),
    ("registers of an array that works by folds", edit("/engines/0/dataflow", {
        "stationary": "weight", "registers": "L1"}), "TW-SPEC-002",
     "/engines/0/dataflow/registers", "nothing reads this"),
    ("sums of rows in registers for sums", both(rows(), edit("/engines/0/accumulators", "REG")),
     "TW-SPEC-002", "/engines/0/accumulators", "leave with it"),
    ("rows without registers", edit("/engines/0/dataflow", {"stationary": "row"}), "TW-SPEC-002",
     "/engines/0/dataflow/registers", "none are named"),
    ("rows in a memory", rows(registers="L1"), "TW-SPEC-002", "/engines/0/dataflow/registers",
     "L1 is no level of registers"),
    ("rows in registers that cores share", both(rows(), edit("/num_cores", 8)),
     "TW-SPEC-002", "/levels/3/instances", "each core has one"),
    ("rows in cells too small", both(rows(), edit("/levels/3/capacity_bytes", 16 * 11)),
     "TW-SPEC-002", "/levels/3/capacity_bytes", "each of 16 cells has 11 bytes"),
    ("unknown dataflow", edit("/engines/0/dataflow", {"stationary": "column"}), "TW-SPEC-001",
     "/engines/0/dataflow/stationary", "weight"),
    ("transfers of a compute engine", edit("/engines/0/setup_cycles", 8), "TW-SPEC-002",
     "/engines/0/setup_cycles", "issues no transfers"),
    ("port of an array without a dataflow", edit("/engines/0/feed_bytes_per_cycle", 8),
     "TW-SPEC-002", "/engines/0/feed_bytes_per_cycle", "say so at /engines/0/dataflow"),
    ("port of a DMA engine", edit("/engines/2/drain_bytes_per_cycle", 8),
     "TW-SPEC-002", "/engines/2/drain_bytes_per_cycle", "nothing reads this"),
    ("instruction without cycles", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4]}]), "TW-SPEC-002",
     "/engines/0/intrinsics/0", "in one way, this one by extents"),
    ("instruction with two kinds of cycles", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "cycles": 8, "formula": {"1": 8}}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0", "by extents, cycles, formula"),
    ("instruction with an oracle and a number", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "cycles": 8, "oracle": "sim"}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0", "by extents, cycles, oracle"),
    ("granule without an oracle", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "cycles": 8, "granule": [1, 1, 1]}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0", "by extents, cycles, granule"),
    ("granule of another rank", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "oracle": "sim", "granule": [1]}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0/granule", "a step for every extent"),
    ("granule beyond its extent", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "oracle": "sim",
         "granule": [8, 5, 4]}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0/granule/1", "longer than its extent"),
    ("granule that asks too much", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [32, 32, 32], "oracle": "sim",
         "granule": [1, 1, 1]}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0/granule", "asked for 32768 sizes"),
    ("element-wise call of a library", edit("/engines/0/intrinsics", [
        {"name": "ew", "op": "elementwise", "extents": [64], "cycles": 1, "call": "ew"}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0/call", "kernel libraries have products"),
    ("oracle of no name", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "oracle": "My Sim"}]),
     "TW-SPEC-001", "/engines/0/intrinsics/0/oracle", "pattern"),
    ("formula of no time", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "formula": {"mn": 0}}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0/formula", "takes no time"),
    ("formula of an unknown extent", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "formula": {"mm": 1}}]),
     "TW-SPEC-001", "/engines/0/intrinsics/0/formula/mm", "mnk"),
    ("instruction above its memory", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [1024, 1024, 1024], "cycles": 1}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0/extents", "operands of a call take 12582912 bytes"),
    ("extents of a conv", edit("/engines/0/intrinsics", [
        {"name": "cv", "op": "conv", "table": [{"extents": [1, 4, 4], "cycles": 4}]}]),
     "TW-SPEC-002", "/engines/0/intrinsics/0/table/0/extents", "kernel height"),
    ("intrinsic extents", edit("/engines/0/intrinsics", [
        {"name": "mm", "op": "matmul", "extents": [4, 4], "cycles": 1}]), "TW-SPEC-002",
     "/engines/0/intrinsics/0/extents", "m, n, k"),
    ("engine of a target", targets("/targets/0/engines", ["MN"]), "TW-SPEC-002",
     "/targets/0/engines/0", "does not exist; did you mean MM?"),
    ("dma engine of a target", targets("/targets/0/engines", ["IN"]), "TW-SPEC-002",
     "/targets/0/engines/0", "moves data and is shared"),
    ("two targets of one name", targets("/targets/1/name", "big"), "TW-SPEC-002",
     "/targets/1/name", "already used at /targets/0"),
    ("target called host", targets("/targets/1/name", "host"), "TW-SPEC-002",
     "/targets/1/name", "host is the processor"),
    ("dtype without an engine of the target", targets("/targets/0/engines", ["MM"]),
     "TW-SPEC-002", "/targets/0/capabilities/dtypes/1", "no engine has a rate"),
    ("misspelt op of a target", targets("/targets/1/capabilities/ops/0/op_type", "Covn"),
     "TW-SPEC-002", "/targets/1/capabilities/ops/0/op_type", "did you mean Conv?"),
    ("nothing offered", edit("/capabilities", {"dtypes": ["f32"], "max_rank": 4}), "TW-SPEC-002",
     "/capabilities", "no operator is offered"),
    ("limits reversed in a target",
     targets("/targets/1/capabilities/ops/0/limits/kernel_h", {"min": 3, "max": 2}),
     "TW-SPEC-002", "/targets/1/capabilities/ops/0/limits/kernel_h/max", "below the minimum"),
    ("op listed twice", edit("/capabilities/ops", [{"op_type": "Conv"}, {"op_type": "Conv"}]),
     "TW-SPEC-002", "/capabilities/ops/1/op_type", "already listed at /capabilities/ops/0"),
    ("unknown attribute", attributes("stride", {"min": 1}), "TW-SPEC-002",
     "/capabilities/ops/0/attributes/stride", "has no attribute 'stride'; did you mean strides?"),
    ("attribute of the wrong type", attributes("group", {"allowed": ["one"]}), "TW-SPEC-002",
     "/capabilities/ops/0/attributes/group/allowed/0", "is an integer, so it never equals 'one'"),
    ("list for a plain attribute", attributes("group", {"allowed": [[1, 1]]}), "TW-SPEC-002",
     "/capabilities/ops/0/attributes/group/allowed/0", "never equals [1, 1]"),
    ("condition of nothing", edit("/capabilities/ops/0/conditions", [{}]), "TW-SPEC-002",
     "/capabilities/ops/0/conditions/0", "either any_of or compare"),
    ("bounds of a text", attributes("auto_pad", {"max": 3}), "TW-SPEC-002",
     "/capabilities/ops/0/attributes/auto_pad/max", "has no bounds"),
    ("attribute that no rule compares", edit("/capabilities/ops", [
        {"op_type": "If", "attributes": {"then_branch": {"min": 1}}}]), "TW-SPEC-002",
     "/capabilities/ops/0/attributes/then_branch", "holds a graph"),
    ("attribute rule without content", attributes("group", {}), "TW-SPEC-002",
     "/capabilities/ops/0/attributes/group", "allows everything"),
    ("attribute bounds reversed", attributes("strides", {"min": 4, "max": 1}), "TW-SPEC-002",
     "/capabilities/ops/0/attributes/strides/max", "below the minimum"),
    ("attribute value outside its bounds", attributes("group", {"allowed": [1, 9], "max": 4}),
     "TW-SPEC-002", "/capabilities/ops/0/attributes/group/allowed/1", "refuse it"),
    ("dtype of an op", edit("/capabilities/ops/0/dtypes", ["f16"]), "TW-SPEC-002",
     "/capabilities/ops/0/dtypes/0", "not among the dtypes of the target"),
    ("buffer that does not exist", edit("/capabilities/partition", {"buffer_fit": "L3"}),
     "TW-SPEC-002", "/capabilities/partition/buffer_fit", "does not exist; did you mean L1?"),
    ("buffer in a cache", edit("/capabilities/partition", {"buffer_fit": "L2"}), "TW-SPEC-002",
     "/capabilities/partition/buffer_fit", "is a cache"),
    ("conversion to an undeclared dtype", edit("/capabilities/conversions", [{"dtype": "i8"}]),
     "TW-SPEC-002", "/capabilities/conversions/0/dtype", "not among the dtypes of the target"),
    ("conversion without an engine", both(
        edit("/capabilities/dtypes", ["f32", "i8"]),
        edit("/capabilities/conversions", [{"dtype": "i8"}])),
     "TW-SPEC-002", "/capabilities/conversions/0/dtype", "no engine has a rate for it"),
    ("two conversions to one dtype", edit("/capabilities/conversions", [
        {"dtype": "f16"}, {"dtype": "f16"}]), "TW-SPEC-002",
     "/capabilities/conversions/1/dtype", "already given"),
    ("conversion from integers", edit("/capabilities/conversions", [
        {"dtype": "i8", "sources": ["f32", "i32"]}]), "TW-SPEC-002",
     "/capabilities/conversions/0/sources/1", "cannot start from i32"),
    ("conversion to itself", edit("/capabilities/conversions", [
        {"dtype": "f16", "sources": ["f16"]}]), "TW-SPEC-002",
     "/capabilities/conversions/0/sources/0", "cannot start from f16"),
    ("misspelt op of a conversion", edit("/capabilities/conversions", [
        {"dtype": "f16", "op_types": ["Gem"]}]), "TW-SPEC-002",
     "/capabilities/conversions/0/op_types/0", "did you mean Gemm?"),
    ("misspelt op of the layout", layout("NHWC", op_types=["Conb"]), "TW-SPEC-002",
     "/capabilities/layout/op_types/0", "did you mean Conv?"),
    ("layout with an unknown axis", layout("NHWX"), "TW-SPEC-002",
     "/capabilities/layout/activations", "X is not an axis"),
    ("layout with an axis twice", layout("NHHC"), "TW-SPEC-002",
     "/capabilities/layout/activations", "the axis H is named twice"),
    ("layout without channels", layout("NHW"), "TW-SPEC-002",
     "/capabilities/layout/activations", "the axis C is missing"),
    ("layout with an empty block", layout("NCHW0c"), "TW-SPEC-002",
     "/capabilities/layout/activations", "a block of 0 is no block"),
    ("duplex of a cache", edit("/levels/1/duplex", "half"), "TW-SPEC-002",
     "/levels/1/duplex", "changes nothing at L2, a cache"),
    ("tagged duplex of registers", edit("/levels", [
        *tiny()["levels"], {**tiny()["levels"][2], "name": "REG", "managed": "register",
                            "duplex": {"value": "full", "tag": "K"}}]), "TW-SPEC-002",
     "/levels/3/duplex", "changes nothing at REG, a register"),
    ("ports of engines where none computes", edit("/levels/1/engine_ports", "own"), "TW-SPEC-002",
     "/levels/1/engine_ports", "no engine computes from L2"),
    ("no such ports of engines", edit("/levels/2/engine_ports", "both"), "TW-SPEC-001",
     "/levels/2/engine_ports", "'own' or 'shared'"),
    ("no such duplex", edit("/levels/0/duplex", "both"), "TW-SPEC-001",
     "/levels/0/duplex", "'full' or 'half'"),
    ("layout that splits no axis", layout("NCHW", "OIHW16k"), "TW-SPEC-002",
     "/capabilities/layout/weights", "a block splits K"),
]  # fmt: skip


def findings_at(findings: tuple[Finding, ...], pointer: str) -> list[Finding]:
    return [f for f in findings if f.pointer == pointer]


def test_the_tiny_document_is_accepted() -> None:
    assert lint_document(tiny()) == ()
    document = tiny()
    edit("/engines/1/special_ops_per_cycle", 0)(document)
    assert lint_document(document) == ()
    machine = load_machine(tiny())
    assert machine.num_cores == 4
    assert machine.level("L1").capacity_bytes == 1 << 16


@pytest.mark.parametrize(
    ("change", "code", "pointer", "part"),
    [row[1:] for row in REFUSALS],
    ids=[row[0] for row in REFUSALS],
)
def test_refusal(change: Callable[[Document], None], code: str, pointer: str, part: str) -> None:
    document = tiny()
    change(document)
    found = findings_at(lint_document(document), pointer)
    assert found, f"nothing at {pointer}: {lint_document(document)}"
    assert found[0].code == code
    assert any(p in found[0].message for p in part.split("|"))
    assert found[0].allowed
    with pytest.raises(SpecError) as caught:
        load_machine(document)
    assert found[0] in caught.value.findings


def test_registers_are_spread_over_cells_that_keep_rows() -> None:
    document = tiny()
    rows()(document)
    assert lint_document(document) == ()
    flow = load_machine(document).engine("MM").dataflow
    assert flow is not None
    assert flow.cell_bytes == (1 << 16) // 16


def test_two_targets_are_accepted_and_checked_alike() -> None:
    document = tiny()
    targets("/targets/0/engines", ["MM", "VEC"])(document)
    document["targets"][0]["capabilities"]["ops"][0]["attributes"] = {
        "strides": {"allowed": [1, [2, 2]]}, "auto_pad": {"allowed": ["NOTSET"]},
    }  # fmt: skip
    assert lint_document(document) == ()
    assert [t.name for t in load_machine(document).targets] == ["big", "small"]


def test_levels_with_fewer_instances_than_the_level_before() -> None:
    document = tiny()
    document["levels"].insert(2, {**document["levels"][2], "name": "LLB", "instances": 4})
    document["levels"][3]["instances"] = 2
    found = findings_at(lint_document(document), "/levels/3/instances")
    assert "fewer instances than LLB" in found[0].message


def test_an_array_far_smaller_than_its_rate() -> None:
    document = tiny()
    document["engines"][0]["array"] = [1, 1]
    document["engines"][0]["macs_per_cycle"] = {"f32": 100}
    found = findings_at(lint_document(document), "/engines/0/array")
    assert "1 cells cannot do 100" in found[0].message


def test_every_rule_has_a_refusal() -> None:
    fired = set()
    documents = []
    for _, change, *_ in REFUSALS:
        document = tiny()
        change(document)
        documents.append(document)
    for document in documents:
        fired |= {rule.__name__ for rule in RULES if list(rule(SpecReader(document)))}
    of_a_mesh = {rule.__name__ for rule in MESH_RULES}  # refused in test_mesh_spec.py
    assert fired == {rule.__name__ for rule in RULES} - of_a_mesh


def test_all_findings_come_at_once() -> None:
    document = tiny()
    for pointer, value in (
        ("/clock_hz", -1), ("/levels/0/read_bytes_per_cycle", "x"), ("/engines/0/memory", "L7"),
        ("/levels/2/instances", 3),
    ):  # fmt: skip
        edit(pointer, value)(document)
    pointers = {f.pointer for f in lint_document(document)}
    assert pointers >= {
        "/clock_hz", "/levels/0/read_bytes_per_cycle", "/engines/0/memory", "/levels/2/instances",
    }  # fmt: skip


@pytest.mark.parametrize("junk", [[], "x", 3, None])
def test_junk_in_any_place_is_a_finding_not_a_crash(junk: object) -> None:
    for key in tiny():
        document = tiny()
        document[key] = junk
        findings = lint_document(document)
        if (key, junk) in (("description", "x"), ("name", "x"), ("links", [])):
            continue
        if key in ("clock_hz", "num_cores", "launch_latency_cycles") and junk == 3:
            continue
        if key == "num_clusters" and junk is None:
            continue
        assert findings, (key, junk)
        assert any(f.pointer is not None and f.pointer.startswith(f"/{key}") for f in findings)


def test_a_finding_in_an_inherited_document_points_into_the_users_text() -> None:
    document = {"name": "mine", "inherits": "stcp920",
                "levels": [{"name": "L1", "capacity_bytes": 0}]}  # fmt: skip
    found = lint_document(document)
    assert [f.pointer for f in found] == ["/levels/0/capacity_bytes"]
    assert "nearest preset value" in found[0].message


def test_a_contradiction_with_an_inherited_field_says_so() -> None:
    found = lint_document({"name": "mine", "inherits": "stcp920", "num_cores": 30})
    assert any("(inherited from stcp920)" in f.message for f in found)
    assert {f.pointer for f in found} >= {"/levels/1/instances", "/levels/2/instances"}


def test_unknown_base_preset_is_a_finding_with_suggestions() -> None:
    found = lint_document({"name": "mine", "inherits": "stcp92"})
    assert found[0].code == "TW-SPEC-003"
    assert "did you mean stcp920" in found[0].message


class TestInheritance:
    def test_named_items_merge_and_the_rest_stays(self) -> None:
        document = {
            "name": "mine", "inherits": "a100", "clock_hz": 2e9,
            "levels": [{"name": "SMEM", "capacity_bytes": 1 << 18}],
        }  # fmt: skip
        machine, base = load_machine(document), load_machine(preset_document("a100"))
        assert machine.name == "mine"
        assert machine.clock_hz == 2e9
        assert machine.level("SMEM").capacity_bytes == 1 << 18
        assert machine.level("SMEM").instances == base.level("SMEM").instances
        assert machine.engines == base.engines

    def test_items_can_be_removed_and_placed(self) -> None:
        document = {
            "name": "mine", "inherits": "a100",
            "levels": [
                {"name": "REG", "remove": True},  # and with them the sums in them
                {"name": "LLC", "after": "DRAM", "capacity_bytes": 1 << 27, "instances": 1,
                 "read_bytes_per_cycle": 3000, "write_bytes_per_cycle": 3000,
                 "latency_cycles": 250, "managed": "cache"},
            ],
            "engines": [{"name": name, "accumulators": None} for name in ("TC", "CUDA")],
        }  # fmt: skip
        names = [level.name for level in load_machine(document).levels]
        assert names == ["DRAM", "LLC", "L2", "SMEM"]

    @pytest.mark.parametrize("key", ["remove", "after"])
    def test_an_edit_of_nothing_is_refused(self, key: str) -> None:
        item = {"name": "NONE", key: True if key == "remove" else "NOWHERE"}
        found = lint_document({"name": "m", "inherits": "a100", "levels": [item]})
        assert found[0].pointer == f"/levels/0/{key}"

    def test_the_base_is_not_changed(self) -> None:
        before = deepcopy(preset_document("a100"))
        canonical_document({"name": "m", "inherits": "a100", "clock_hz": 1e9})
        assert preset_document("a100") == before

    def test_resolving_twice_changes_nothing(self) -> None:
        once = canonical_document(preset_document("stcp920-inferred"))
        assert canonical_document(once) == once


class TestText:
    def test_numbers_in_every_usual_spelling(self) -> None:
        document = parse_document("a: 1e9\nb: 1.5E+3\nc: 12\nd: 2.5\ne: .5e1\n")
        assert document == {"a": 1e9, "b": 1500.0, "c": 12, "d": 2.5, "e": 5.0}

    @pytest.mark.parametrize(
        "text",
        [
            "", "[1, 2]", "just text", "a: [1", "a: 1\na: 2", '{"a": 1, "a": 2}',
            '{"a": ', "a: !!python/object/apply:os.getcwd []", "a: &x [*x]", "[" * 3000,
            "a: " + "{b: " * 200 + "1" + "}" * 200, "x: " + "y" * (1 << 21),
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
                f"{c}: &{c} [{', '.join([f'*{p}'] * 10)}]\n"
                for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        ],
    )  # fmt: skip
    def test_unreadable_text_is_refused(self, text: str) -> None:
        with pytest.raises(SpecError) as caught:
            parse_document(text)
        assert caught.value.code == "TW-SPEC-004"

    def test_json_is_read_too(self) -> None:
        assert parse_document('{"name": "x", "clock_hz": 1e9}') == {"name": "x", "clock_hz": 1e9}


def test_an_instruction_above_the_rate_is_a_doubt_that_reports_repeat() -> None:
    """16 MACs a cycle: a call of 8 x 4 x 4 in 4 cycles does 32."""
    document = tiny()
    mm = {"name": "mm", "op": "matmul", "extents": [8, 4, 4], "cycles": 4}
    edit("/engines/0/intrinsics", [mm])(document)
    assert lint_document(document) == ()
    doubts = {guess.pointer: guess.value for guess in load_machine(document).guesses}
    assert doubts["/engines/0/intrinsics/0"] == "32 operations per cycle"
    mm["cycles"] = 8
    assert "/engines/0/intrinsics/0" not in {g.pointer for g in load_machine(document).guesses}


def test_a_float_type_without_a_rate_has_two_remedies() -> None:
    """The field, or the option that turns models into what engines have; integers: the field."""
    for dtype, converts in (("bf16", True), ("u32", False)):
        document = tiny()
        edit("/capabilities/dtypes", ["f32", dtype])(document)
        (found,) = lint_document(document)
        assert f"macs_per_cycle/{dtype}" in str(found.allowed)
        assert ("option precision" in str(found.allowed)) is converts
