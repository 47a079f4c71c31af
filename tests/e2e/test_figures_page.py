"""docs/figures.md defines what reports have, all of it and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from onnx_models import saved, with_host_part

from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.report.parts import layer_parts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "figures.md"


def defined(heading: str) -> list[str]:
    """What the table under a heading defines, with placeholders as written."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    section, _, _ = rest.partition("\n## ")
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def generic(name: str) -> str:
    """A name as the page writes it: what the chip names is a placeholder."""
    name = re.sub(r"^naive_[a-z]+$", "STRATEGY_COLUMN", name)
    name = re.sub(r"^bytes_.+_(read|write)$", r"bytes_LEVEL_\1", name)
    name = re.sub(r"^port:.+\.(read|write)$", r"port:LEVEL.\1", name)
    return re.sub(r"^(bus|engine|fill|link|level|feed|register):.+$", r"\1:NAME", name)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A model with a host part on a chip with registers and a host link of its own."""
    folder = tmp_path_factory.mktemp("figures")
    chip = {"inherits": "kapla-16x16", "name": "c", "schema_version": 1,
            "host": {"shared_memory": False}}  # fmt: skip
    found = []
    for hardware in (chip, {"preset": "a100"}):
        options = CompileOptions.from_json({"verify": "none"})
        path = saved(with_host_part(), folder)
        out = folder / str(len(found))
        run_job(JobRequest(path, "m", hardware, options, folder / "b"), out, MemoryCache(),
                NoProgress())  # fmt: skip
        found.append(json.loads((out / "report.json").read_bytes()))
    return found


def test_every_figure_is_defined_and_every_definition_is_of_a_figure(
    reports: list[dict[str, Any]],
) -> None:
    for report in reports:
        assert list(dict.fromkeys(defined("The whole (`summary`)"))) == defined(
            "The whole (`summary`)"
        )
        assert set(report["summary"]) == set(defined("The whole (`summary`)"))
        columns = {generic(name) for row in report["layers"] for name in row}
        every = set(defined("Layers"))
        assert columns | {"part", "STRATEGY_COLUMN"} == {*every, *columns & {"groups"}}
        rows = layer_parts(report["layers"], report["summary"]["latency_cycles"])
        assert {generic(name) for name in rows[0]} | {"STRATEGY_COLUMN"} == every


def test_causes_and_items_of_energy_are_defined(reports: list[dict[str, Any]]) -> None:
    causes = {generic(c["cause"]) for r in reports for c in r["summary"]["causes"]}
    assert causes <= set(defined("Causes"))
    assert causes >= {"engine:NAME", "port:LEVEL.read", "latency", "launch", "host", "host-link"}
    items = {generic(line["item"]) for r in reports for line in r["energy"]}
    assert items <= set(defined("Energy"))
    assert items >= {"mac", "bus:NAME", "level:NAME", "register:NAME", "host", "static"}
