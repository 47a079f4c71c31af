"""A violated invariant stands on the report itself, and fails the job."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from onnx_models import repeated_layers, saved

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import SimulationError
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.job.simulation import refuse_violations, simulate_model
from worker.report.document import Verification, report_document
from worker.report.page import report_page
from worker.simulator.results import Check


def test_a_violated_invariant_is_printed_and_refused(tmp_path: Path) -> None:
    machine, options = load_preset("a100"), CompileOptions()
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    path = saved(repeated_layers(2), tmp_path)
    compiled = compile_model(path, "m", machine, options, ports, Limits())
    sims, whole = simulate_model(compiled, MemoryCache())
    refuse_violations(sims, whole)  # the honest run passes
    broken = Check("bytes-<conserved>", False, "read 5, wrote 4")
    unit = msgspec.structs.replace(sims[0], checks=(*sims[0].checks, broken))
    sims = (unit, *sims[1:])
    verification = Verification("none", "none", None, None, None, None, "not asked for")
    document = report_document(compiled, sims, whole, CompileOptions(), verification, {})
    failed = [c for c in document["sanity"] if not c["passed"]]  # type: ignore[union-attr,index]
    assert [c["name"] for c in failed] == ["units:bytes-<conserved>"]  # type: ignore[index]
    page = report_page(document, compiled, sims, whole)
    assert "Violated invariants: units:bytes-&lt;conserved&gt;" in page
    assert "read 5, wrote 4" in page
    with pytest.raises(SimulationError) as refusal:
        refuse_violations(sims, whole)
    assert refusal.value.code == "TW-SIM-003"
