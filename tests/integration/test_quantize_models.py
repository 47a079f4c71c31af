"""Real networks in i8 and f16: fast to convert, complete, and close to the float ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from quantize_nets import F16, I8, calibrated, output_sqnr, placed

from benchmarks.zoo import ZOO, materialized
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.qdq import cluster_rejection, find_clusters
from worker.compiler.frontend.simplify import simplify
from worker.compiler.machine.machine import Conversion
from worker.compiler.quantize.convert import convert
from worker.verification.inputs import seeded_inputs


@pytest.fixture(scope="module")
def scratch(shared_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skips where the models are not there."""
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(
    ("name", "choice", "least_db"),
    [
        ("resnet18", I8, 30.0), ("resnet18", F16, 55.0),
        ("mobilenet_v2", I8, 30.0), ("mobilenet_v2", F16, 55.0),
    ],
    ids=["resnet18-i8", "resnet18-f16", "mobilenet_v2-i8", "mobilenet_v2-f16"],
)  # fmt: skip
def test_whole_networks(
    scratch: Path,
    name: str,
    choice: Conversion,
    least_db: float,
    record_property: Callable[[str, object], None],
) -> None:
    zoo = next(m for m in ZOO if m.name == name)
    path = materialized(zoo, scratch)
    model = simplify(bind(load_model(path, Limits()), dict(zoo.symbols)))
    batch = seeded_inputs(model, 0)
    found = convert(model, placed(model), {"npu": choice}, calibrated(model, [batch]))
    assert len(found.converted_nodes) == len(model.ir.graph)
    if choice is I8:
        nodes = list(found.model.ir.graph)
        clusters = find_clusters(nodes, [v.name or "" for v in found.model.ir.graph.outputs])
        assert [r for c in clusters if (r := cluster_rejection(nodes, c, model.opset))] == []
        covered = {nodes[k].name for cluster in clusters for k in cluster.nodes}
        assert set(found.converted_nodes) <= covered
    for output, measured in zip(
        model.ir.graph.outputs, output_sqnr(model, found.model, [batch]), strict=True
    ):
        record_property(f"{name} {choice.dtype} {output.name} sqnr_db", measured.db)
        assert measured.db is not None
        assert measured.db > least_db
