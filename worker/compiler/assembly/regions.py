"""From a CompiledModel to the three code formats of its regions."""

from __future__ import annotations

from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.executable import HomeTensor
from worker.compiler.package.manifest import region_function
from worker.compiler.package.region_code import region_code
from worker.compiler.package.region_export import ConstantStore, export_region
from worker.compiler.package.region_members import PackedRegion, ProgramRegions


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
    for index, (part, graph) in enumerate(zip(parts, compiled.region_graphs, strict=True)):
        code = region_code(
            index, part.target, region_function(prefix, index), graph, linked.program, kernels,
            tensors, views,
        )  # fmt: skip
        changes = tuple(change for region, change in compiled.layouts if region == index)
        document = export_region(index, part, compiled.model, changes, graph.constants, store)
        found.append(PackedRegion(code, document))
    return ProgramRegions(prefix, tuple(found), tuple(store.tensors), store.values)
