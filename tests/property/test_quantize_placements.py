"""Any placement on any mix of formats gives a valid model that computes nearly the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import onnx.checker
from hypothesis import given
from hypothesis import strategies as st
from quantize_nets import (
    F16,
    I8,
    NETS,
    U8,
    built,
    calibrated,
    inputs,
    loaded,
    noise_db,
    placed,
    run_model,
    serialised,
)

from worker.compiler.partition.plan import HOST
from worker.compiler.quantize.convert import convert
from worker.compiler.quantize.insert import INSERTED

CHOICES = {"a": I8, "b": U8, "c": F16}


@given(
    name=st.sampled_from(sorted(NETS)),
    seed=st.integers(0, 1000),
    targets=st.lists(st.sampled_from(["a", "a", "b", "c", HOST]), min_size=12, max_size=12),
)
def test_any_placement_converts(name: str, seed: int, targets: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = loaded(built(NETS[name], seed=seed), Path(folder))
    nodes = list(model.ir.graph)
    rows = placed(model, targets[: len(nodes)])
    batches = inputs(model, 2, seed)
    found = convert(model, rows, CHOICES, calibrated(model, batches))
    proto = onnx.load_model_from_string(serialised(found.model))
    onnx.checker.check_model(proto, full_check=True)
    kept = [n for n in found.model.ir.graph if INSERTED not in n.metadata_props]
    assert [n.name for n in kept] == [n.name for n in nodes]
    # whoever stays on the host reads the values it read before, by name and type
    moved = set(found.converted_nodes)
    assert moved <= {row.node for row in rows if row.target != HOST}
    for old, new in zip(nodes, kept, strict=True):
        if old.name in moved:
            continue
        assert [(v.name, v.dtype) for v in new.inputs if v] == [
            (v.name, v.dtype) for v in old.inputs if v
        ]
    for boundary in found.boundaries:
        assert boundary.elements * 4 in (boundary.bytes_before, boundary.bytes_after)
        assert boundary.sqnr_db is None or boundary.sqnr_db > 25.0
        assert (boundary.sqnr_db is None) == bool(boundary.sqnr_reason)
    for batch in batches:
        exact, converted = run_model(model, batch), run_model(found.model, batch)
        assert list(exact) == list(converted)
        for key, want in exact.items():
            assert converted[key].dtype == want.dtype
            assert noise_db(want, converted[key]) > 25.0
