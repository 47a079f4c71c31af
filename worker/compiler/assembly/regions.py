"""From a CompiledModel to the three code formats of its regions."""

from __future__ import annotations

from hashlib import sha256

from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine.machine import Machine
from worker.compiler.package.executable import HomeTensor
from worker.compiler.package.manifest import region_function
from worker.compiler.package.region_code import region_code
from worker.compiler.package.region_export import ConstantStore, export_region
from worker.compiler.package.region_members import PackedRegion, ProgramRegions
from worker.compiler.package.stream.tasks import unit_tasks
from worker.compiler.package.unit_tasks import UnitTasks
from worker.compiler.package.weights import stored_bytes


def packed_regions(compiled: CompiledModel, prefix: str) -> ProgramRegions:
    """The regions of the program in folder `prefix` of the bundle; empty: the model itself.

    Cost: linear in the program, one pass over the constants of its regions.
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

    def digest_of(name: str) -> str:
        return sha256(stored_bytes(tensors[name], compiled.constants[name]())).hexdigest()

    for index, (part, graph) in enumerate(zip(parts, compiled.region_graphs, strict=True)):
        machine = compiled.machine.restricted(compiled.machine.target(part.target))

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
        found.append(PackedRegion(code, document))
    return ProgramRegions(prefix, tuple(found), tuple(store.tensors), store.values)
