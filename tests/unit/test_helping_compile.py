"""A compile that is there for the cache alone begins at the end, and changes no result."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.cache import CacheKey, CacheKind, MemoryCache
from worker.compiler.options import CompileOptions
from worker.compiler.stages import Watch
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress


class Noting(MemoryCache):
    """Keeps in which order schedules were asked for, and which were not there."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.missed: list[str] = []

    def get(self, key: CacheKey) -> bytes | None:
        found = super().get(key)
        if key.kind is CacheKind.SCHEDULE:
            self.asked.append(key.digest)
            if found is None:
                self.missed.append(key.digest)
        return found


def chain(widths: list[int]) -> onnx.ModelProto:
    """Products of different widths, each a kernel of its own shape."""
    nodes, weights = [], []
    for k, (before, after) in enumerate(pairwise(widths)):
        weights.append(numpy_helper.from_array(np.ones((before, after), np.float32), f"w{k}"))
        nodes.append(helper.make_node("MatMul", [f"t{k}", f"w{k}"], [f"t{k + 1}"], name=f"n{k}"))
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, [4, widths[0]])],
        [helper.make_tensor_value_info(f"t{len(nodes)}", TensorProto.FLOAT, [4, widths[-1]])],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_a_helper_begins_at_the_end_and_leaves_nothing_to_solve(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(chain([16, 24, 40, 56, 72, 88]).SerializeToString())
    options = CompileOptions.from_json({"verify": "none"})
    request = JobRequest(path, "m.onnx", {"preset": "a100"}, options, tmp_path / "build")
    helping = replace(request, is_helping=True, watch=Watch(stop_after="schedule"))
    alone, shared = Noting(), Noting()

    run_job(request, tmp_path / "alone", alone, NoProgress())
    outcome = run_job(helping, tmp_path / "help", shared, NoProgress())
    assert outcome.bundle_digest == ""
    first = list(dict.fromkeys(alone.missed))
    assert len(first) >= 10
    mine = list(dict.fromkeys(shared.missed))
    assert sorted(mine) == sorted(first)
    shared.missed.clear()
    run_job(request, tmp_path / "helped", shared, NoProgress())
    assert shared.missed == []
    for name in ("report.json", "schedule.json", "trace.json.gz", "m.twb"):
        theirs = (tmp_path / "helped" / name).read_bytes()
        assert theirs == (tmp_path / "alone" / name).read_bytes(), name


def test_units_are_solved_from_the_last(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(chain([16, 24, 40, 56, 72, 88]).SerializeToString())
    options = CompileOptions.from_json({"verify": "none", "strategy": "naive"})
    request = JobRequest(path, "m.onnx", {"preset": "a100"}, options, tmp_path / "build")
    helping = replace(request, is_helping=True, watch=Watch(stop_after="schedule"))
    orders = []
    for asked in (request, helping):
        cache = Noting()
        run_job(asked, tmp_path / "out", cache, NoProgress())
        units = [dict(cache.keys[digest].fields)["signature"] for digest in cache.missed]
        orders.append(list(dict.fromkeys(units)))
    assert len(orders[0]) == 5
    assert orders[1] == orders[0][::-1]
