"""What links of a mesh carry: counted apart, in a report, and drawn."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lower_toys import naive_matmul
from mesh_toys import PJ, RATE, mesh_machine, wires_of
from test_pages_report import document

from service.pages.report import Report, report_of
from worker.compiler.cache import NullCache
from worker.compiler.isa.program import expanded
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.mesh import Mesh
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.report.mesh_map import MOST_NODES, Loaded, MeshLoad, mesh_map
from worker.simulator.mesh_load import summed_load
from worker.simulator.results import LinkLoad
from worker.simulator.run import simulate_unit

HANGS = {"in": "from memory", "out": "to memory"}


@pytest.mark.parametrize("multicast", [False, True])
def test_links_carry_what_transfers_bring_over_them(*, multicast: bool) -> None:
    """Each transfer of the listed program, over pairs of routers that the test finds itself."""
    machine = mesh_machine(2, 3, ((0, 1), (1, 2)), multicast=multicast)
    mesh = machine.links[0].mesh
    assert mesh is not None
    unit = lower_unit(naive_matmul(96, 16, 24, (8, 8, 12), 6), machine, "s" * 64)
    listed = expanded(unit)
    want: Counter[tuple[object, ...]] = Counter()
    for row in listed.instructions:
        for number in row["resource"].tolist():
            port = listed.resources[number]
            if number >= 0 and port.level == "noc":
                for wire in wires_of(port, mesh)[0]:
                    want[_named(wire, mesh)] += int(row["bytes"])
    found = simulate_unit(unit, machine)
    got = {mesh.joins(load.link): load.bytes for load in found.mesh}
    assert got == dict(want)
    assert [load.link for load in found.mesh] == sorted({load.link for load in found.mesh})
    (energy,) = (line.pj for line in found.energy if line.item == "link:noc")
    between = sum(load.bytes for load in found.mesh if not mesh.joins(load.link)[2])
    assert energy == pytest.approx(between * PJ)
    for load in found.mesh:
        assert load.bytes / RATE <= load.busy_cycles <= found.cycles


def _named(wire: Any, mesh: Mesh) -> tuple[object, ...]:
    if wire[0] not in HANGS:
        return (*wire, "")
    end, hangs = wire[1], HANGS[wire[0]]
    if end >= mesh.num_nodes:
        router = mesh.ports[end - mesh.num_nodes]
        return router, router, hangs.replace("memory", "home")
    return divmod(end, mesh.columns), divmod(end, mesh.columns), hangs


def test_loads_are_summed_link_by_link() -> None:
    parts = [((LinkLoad(3, 10, 4), LinkLoad(1, 5, 2)), 2), ((LinkLoad(3, 1, 1),), 1), ((), 9)]
    assert summed_load(parts) == (LinkLoad(1, 10, 4), LinkLoad(3, 21, 9))
    assert summed_load([((LinkLoad(3, 1, 1),), 0)]) == ()


def test_a_report_has_the_load_and_its_page_draws_it(tmp_path: Path) -> None:
    noc = {"name": "NOC", "mesh": {"rows": 16, "columns": 16, "ports": [[0, 0], [15, 15]]}}
    hardware = {"name": "km", "inherits": "kapla-16x16", "links": [noc]}
    model = Path(__file__).parents[2] / "service" / "cli" / "example" / "tiny_cnn.onnx"
    options = CompileOptions.from_json({"strategy": "naive", "verify": "none"})
    request = JobRequest(model, "net", hardware, options, tmp_path / "build")
    run_job(request, tmp_path / "out", NullCache(), NoProgress())
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    (told,) = report["mesh"]
    assert (told["link"], told["rows"], told["columns"]) == ("NOC", 16, 16)
    assert (told["ports"], told["numbering"]) == ([[0, 0], [15, 15]], "home")
    (energy,) = (line["pj"] for line in report["energy"] if line["item"] == "link:NOC")
    assert energy > 0
    hops = [row for row in told["links"] if not row["hangs"]]
    assert all(sum(abs(a - b) for a, b in zip(r["from"], r["to"], strict=True)) == 1 for r in hops)
    home = {way: sum(r["bytes"] for r in told["links"] if r["hangs"] == f"{way} home")
            for way in ("from", "to")}  # fmt: skip
    assert home["from"] > 0 and home["to"] > 0
    for row in told["links"]:
        share = 100 * row["busy_cycles"] / report["summary"]["latency_cycles"]
        assert row["busy_pct"] == pytest.approx(share, abs=0.001)
    page = (tmp_path / "out" / "report.html").read_text()
    drawn = page[page.index('<svg class="mesh"') :]
    svg = ET.fromstring(drawn[: drawn.index("</svg>") + len("</svg>")])
    assert len(svg.findall("rect")) == 256
    assert len(svg.findall("line")) == len(hops)
    shown = report_of(report)
    assert isinstance(shown, Report)
    assert mesh_map(shown.mesh[0]) in page


def test_the_busiest_link_is_the_thickest() -> None:
    links = tuple(
        Loaded((0, k), (0, k + 1), "", 10 * busy, busy, float(busy))
        for k, busy in enumerate((100, 79, 1))
    )
    text = mesh_map(MeshLoad("<n>", 1, 4, ((0, 2),), links))
    assert [text.index(f'"heat-{shade}"') for shade in (4, 3, 0)] == sorted(
        text.index(f'"heat-{shade}"') for shade in (4, 3, 0)
    )
    assert "The busiest link, 0,0 to 0,1, is held 100.0 % of all cycles" in text
    assert text.count('class="home"') == 1 and "&lt;n&gt;" in text and "<n>" not in text
    assert mesh_map(MeshLoad("n", 1, 2, (), ())).endswith("from router to router.</p>")
    assert not mesh_map(MeshLoad("n", MOST_NODES, 2, (), ())).startswith("<svg")


def test_a_page_refuses_another_shape_of_it() -> None:
    assert isinstance(report_of(document()), Report)
    row = {"link": "n", "rows": 1, "columns": 2, "ports": [], "links": [
        {"from": "0,0", "to": [0, 1], "hangs": "", "bytes": 1, "busy_cycles": 1, "busy_pct": 1.0}
    ]}  # fmt: skip
    assert "another shape" in str(report_of(document(mesh=[row])))
    row["links"] = []
    assert isinstance(report_of(document(mesh=[row])), Report)
    for odd in ({"rows": -1}, {"columns": 10**6}, {"ports": [[0, 10**400]]}):
        assert "another shape" in str(report_of(document(mesh=[{**row, **odd}])))
