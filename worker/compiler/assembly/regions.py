"""From a CompiledModel to the code formats of its regions."""

from __future__ import annotations

from hashlib import sha256
from math import prod

import numpy as np

from worker.compiler.ir.dtype import DType
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine.machine import Machine
from worker.compiler.package.executable import Array, HomeTensor
from worker.compiler.package.manifest import region_function
from worker.compiler.package.region_code import region_code
from worker.compiler.package.region_export import ConstantStore, export_region
from worker.compiler.package.region_graph import StoredTensor
from worker.compiler.package.region_members import PackedRegion, ProgramRegions
from worker.compiler.package.serializers import Region, images_of
from worker.compiler.package.stream.tasks import unit_tasks
from worker.compiler.package.unit_tasks import UnitTasks
from worker.compiler.package.weights import WEIGHTS_NAME, stored_bytes


def packed_regions(compiled: CompiledModel, prefix: str) -> ProgramRegions:
    """The regions of the program in folder `prefix` of the bundle; empty: the model itself.

    Raises:
        CompilerError: TW-PLUG-002, a target's serializer failed.
    Cost: linear in the program, one pass over the constants of its regions, and what serializers
    take.
    """
    linked = compiled.linked
    tensors = {
        name: HomeTensor(name, str(t.dtype), t.shape, linked.address_of[name], t.size_bytes)
        for name, t in linked.tensors.items()
    }
    store = ConstantStore(prefix, {name: tensors[name] for name in linked.constants})
    kernels = tuple(unit.kernel_name for unit in compiled.units)
    views = tuple((view.tensor, view.source) for view in linked.views)
    parts = compiled.partitioning.regions
    found: list[PackedRegion] = []
    tasks: dict[int, UnitTasks] = {}

    def value_of(stored: StoredTensor) -> Array:
        values = compiled.constants if stored.member.endswith(WEIGHTS_NAME) else store.values
        size = prod(stored.shape) * DType(stored.dtype).size_bytes
        home = HomeTensor(stored.tensor, stored.dtype, stored.shape, 0, size)
        raw = stored_bytes(home, values[stored.tensor]())
        return np.frombuffer(raw, DType(stored.dtype).numpy).reshape(stored.shape)

    def digest_of(name: str) -> str:
        return sha256(stored_bytes(tensors[name], compiled.constants[name]())).hexdigest()

    for index, (part, graph) in enumerate(zip(parts, compiled.region_graphs, strict=True)):
        target = compiled.machine.target(part.target)
        machine = compiled.machine.restricted(target)

        def tasks_of(number: int, on: Machine = machine) -> UnitTasks:
            if number not in tasks:
                unit = compiled.units[number]
                tasks[number] = unit_tasks(unit.schedule, unit.program, on)
            return tasks[number]

        code = region_code(
            index, part.target, region_function(prefix, index), graph, linked.program, kernels,
            tensors, views, tasks_of, digest_of, machine,
        )  # fmt: skip
        changes = tuple(change for region, change in compiled.layouts if region == index)
        document = export_region(index, part, compiled.model, changes, graph.constants, store)
        images, refusal = images_of(Region(document, code, value_of), prefix, target.serializer)
        engine = "" if refusal is not None else target.engine
        found.append(PackedRegion(code, document, images, engine, refusal))
    return ProgramRegions(prefix, tuple(found), tuple(store.tensors), store.values)
