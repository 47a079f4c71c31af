"""A mesh in a hardware document: what it becomes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from worker.compiler.machine import digest, load_machine
from worker.compiler.machine.digest import machine_document, machine_of
from worker.compiler.machine.inherit import resolve
from worker.compiler.machine.lint.document import lint_document
from worker.compiler.machine.lint.mesh import MESH_RULES
from worker.compiler.machine.lint.view import SpecReader
from worker.compiler.machine.mesh import Mesh, Numbering
from worker.compiler.machine.presets import preset_document

CORNERS = [[0, 0], [0, 15], [15, 0], [15, 15]]


def spec(levels: list[dict[str, Any]] | None = None, **link: Any) -> dict[str, Any]:
    noc = {"name": "NOC", "mesh": {"rows": 16, "columns": 16, "ports": CORNERS}, **link}
    return {"name": "mine", "inherits": "kapla-16x16", "links": [noc], "levels": levels or []}


def mesh(**fields: Any) -> dict[str, Any]:
    return {"mesh": {"rows": 16, "columns": 16, "ports": CORNERS, **fields}}


def test_one_that_is_inherited_is_dropped() -> None:
    one = {
        "num_cores": 1,
        "levels": [{"name": "GBUF", "instances": 1}, {"name": "REGF", "instances": 1}],
    }
    document = {**spec(mesh=None, multicast=False), **one}
    assert load_machine(document).links[0].mesh is None


def test_a_document_places_the_nodes() -> None:
    machine = load_machine(spec())
    corners = (0, 0), (0, 15), (15, 0), (15, 15)
    assert machine.links[0].mesh == Mesh(16, 16, corners, Numbering.HOME)
    other = load_machine(spec(**mesh(ports=[[{"value": 3, "tag": "R"}, 4]])))
    assert other.links[0].mesh == Mesh(16, 16, ((3, 4),), Numbering.HOME)
    by_rows = load_machine(spec(**mesh(numbering={"value": "rows", "tag": "G"})))
    assert by_rows.links[0].mesh == Mesh(16, 16, corners)
    assert len({digest(machine), digest(other), digest(by_rows)}) == 3
    assert machine_of(machine_document(machine)).links == machine.links


REFUSED = [
    (spec(**mesh(ports=[])), "/links/0/mesh/ports", "no node of the mesh reaches DRAM"),
    (spec(**mesh(ports=[[0, 16]])), "/links/0/mesh/ports/0/1", "outside a mesh of 16 rows"),
    (spec(**mesh(ports=[[0, 0], [0, 0]])), "/links/0/mesh/ports/1", "the same router"),
    (spec(**mesh(rows=8, ports=[[0, 0]])), "/links/0/mesh", "128 of them stand on no node"),
    (spec(**mesh(rows=32)), "/links/0/mesh", "256 nodes hold nothing"),
    (spec(kind="bus"), "/links/0/mesh", "only a noc is a mesh"),
    (spec(shared_by=2), "/links/0/shared_by", "nobody else shares them"),
    (spec([{"name": "REGF", "instances": 128}]), "/levels/0/instances", "stands on the 256"),
    (spec([{"name": "DRAM", "instances": 4}]), "/levels/0/instances", "behind the mesh"),
    (spec(**mesh(rows=256, columns=256, ports=[[0, 0]])), "/links/0/mesh", "have no number"),
]  # fmt: skip
CACHE = spec([{
    "name": "L2", "after": "DRAM", "capacity_bytes": 4096, "instances": 1, "managed": "cache",
    "read_bytes_per_cycle": 64, "write_bytes_per_cycle": 64, "latency_cycles": 4,
}])  # fmt: skip


@pytest.mark.parametrize(("document", "pointer", "said"), REFUSED)
def test_what_no_mesh_is(document: dict[str, Any], pointer: str, said: str) -> None:
    found = [f for f in lint_document(document) if said in f.message]
    assert [f.pointer for f in found] == [pointer]
    assert found[0].code == "TW-SPEC-002"
    assert found[0].allowed


def test_a_cache_has_no_place_on_it() -> None:
    found = [f.pointer for f in lint_document(CACHE) if "holds a cache" in f.message]
    assert found == ["/levels/0/managed"]


def test_every_rule_of_a_mesh_has_a_refusal() -> None:
    fired = set()
    for document in (*(row[0] for row in REFUSED), CACHE):
        view = SpecReader(resolve(document, preset_document).document)
        fired |= {rule.__name__ for rule in MESH_RULES if list(rule(view))}
    assert fired == {rule.__name__ for rule in MESH_RULES}


def test_a_second_mesh_is_refused() -> None:
    document = spec()
    document["links"].append({
        "name": "OTHER", "src": "GBUF", "dst": "GBUF", "kind": "noc", "bytes_per_cycle": 1,
        "latency_cycles": 1, **mesh(),
    })  # fmt: skip
    found = [f.pointer for f in lint_document(document) if "a second one" in f.message]
    assert found == ["/links/1/mesh"]
