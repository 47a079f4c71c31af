"""What is remembered of whole compiles: by everything that decides them, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gate_documents import Kernel, documents
from gate_repository import TeamRepository
from onnx import TensorProto, helper, numpy_helper

from service.gate.git import Commit, open_repository
from service.gate.here import Known, run_key
from service.gate.runs import order_of, refusal
from service.gate.selection import Pair
from service.gate.tree import Folder
from service.orders.order import Order
from worker.compiler.cache import CacheKey, CacheKind, MemoryCache
from worker.compiler.errors import CompilerError, InputError, ModelError
from worker.compiler.options import CompileOptions
from worker.runner import conversation
from worker.sandbox import wire

SPEC = {"schema_version": 1, "name": "c", "inherits": "kapla-edge"}


def external_model(folder: Path) -> Path:
    """A model whose weight lies in a file beside it."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])], [weight],
    )  # fmt: skip
    path = folder / "net.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return Order(external_model(tmp_path), dict(SPEC), CompileOptions().to_json(), tmp_path / "out")


def other_options(**fields: Any) -> Callable[[Order], Order]:
    def changed(order: Order) -> Order:
        return replace(order, options=CompileOptions.from_json(fields).to_json())

    return changed


def other_weights(order: Order) -> Order:
    path = order.model.parent / "w.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    return order


def other_bytes(order: Order) -> Order:
    model = onnx.load(order.model, load_external_data=False)
    model.graph.node[0].name = "other"
    order.model.write_bytes(model.SerializeToString())
    return order


def other_name(order: Order) -> Order:
    target = order.model.with_name("else.onnx")
    target.write_bytes(order.model.read_bytes())
    return replace(order, model=target)


DIFFERENT: list[Callable[[Order], Order]] = [
    other_weights, other_bytes, other_name,
    lambda order: replace(order, hardware={"preset": "kapla-edge"}),
    lambda order: replace(order, hardware={**SPEC, "clock_hz": 1e8}),
    lambda order: replace(order, hardware={**SPEC, "name": "d"}),
    other_options(objective="energy"), other_options(symbols={"n": 2}),
    other_options(verify="none"), other_options(seed=1), other_options(fail_on_fallback=True),
]  # fmt: skip


@pytest.mark.parametrize("change", DIFFERENT)
def test_whatever_decides_the_documents_is_in_the_key(
    order: Order, change: Callable[[Order], Order]
) -> None:
    before = run_key(order)
    assert before == run_key(order)
    assert run_key(change(order)).digest != before.digest


def test_what_decides_nothing_is_not(order: Order, tmp_path: Path) -> None:
    same = replace(order, output=tmp_path / "elsewhere", label="nightly")
    assert run_key(same) == run_key(order)
    assert run_key(order).kind is CacheKind.RUN


def test_another_toolchain_has_another_key(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_key(order)
    monkeypatch.setattr("worker.job.toolchain.LOWER_VERSION", "next")
    assert run_key(order).digest != before.digest


def test_documents_come_back_and_damage_is_a_miss() -> None:
    cache = MemoryCache()
    known, key = Known(cache), CacheKey(CacheKind.RUN, (("a", "b"),))
    assert known.get(key) is None
    found = documents([Kernel("n", {"engine:PE": 5})])
    known.put(key, found)
    assert known.get(key) == found
    for damaged in (b"", b"x", cache.entries[key.digest][:-1]):
        cache.entries[key.digest] = damaged
        assert known.get(key) is None


def test_a_payload_can_neither_read_nor_write_them() -> None:
    for operation in ("cache_get", "cache_put"):
        frame = wire.Message({"op": operation, "kind": "run", "fields": [["a", "b"]]}, b"x")
        said = conversation.Conversation(cache_bytes_left=1 << 20)
        with pytest.raises(wire.ProtocolError, match="not a payload's"):
            conversation.answer(frame, None, None, MemoryCache(), said)  # type: ignore[arg-type]


def test_only_what_was_ordered_can_be_at_fault() -> None:
    mine = ModelError("TW-MODEL-004", "a cycle").to_problem()
    assert refusal(mine).problem == mine
    with pytest.raises(CompilerError) as caught:
        refusal(CompilerError("TW-INT-001", "a bug").to_problem())
    assert caught.value.code == "TW-INT-001"


def test_weights_beside_a_model_come_from_its_commit(tmp_path: Path) -> None:
    team = TeamRepository(tmp_path / "team")
    (team.root / "m").mkdir()
    external_model(team.root / "m")
    commit = team.commit({"chip.yaml": "name: c"})
    (team.root / "m" / "w.bin").write_bytes(b"other weights, that no commit has")
    tree = Commit(open_repository(team.root), commit, tmp_path / "store")
    pair = Pair("net", "c", "m/net.onnx", "chip.yaml", None, {}, None, None, "/models/0")
    order = order_of(pair, tree, tmp_path / "out")
    weights = order.model.parent / "w.bin"
    assert np.frombuffer(weights.read_bytes(), np.float32).tolist() == [1.0] * 16
    assert order.model.is_relative_to(tmp_path / "store")
    here = order_of(pair, Folder(team.root), tmp_path / "out")
    assert run_key(replace(order, hardware=SPEC)) != run_key(replace(here, hardware=SPEC))


def test_what_is_not_there_is_refused_before_a_compile(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    pair = Pair("m", "c", "m.onnx", None, "kapla-edge", {}, None, "in.npz", "/models/0")
    with pytest.raises(InputError, match=r"m\.onnx: there is no such file"):
        order_of(pair, Folder(tmp_path), tmp_path)
    model.write_bytes(b"x")
    with pytest.raises(InputError, match=r"in\.npz: there is no such file"):
        order_of(pair, Folder(tmp_path), tmp_path)
    np.savez(tmp_path / "in.npz", x=np.zeros(1))
    options = order_of(pair, Folder(tmp_path), tmp_path).options
    assert len(str(options["inputs"])) == 64
    assert options["calibration"] == ""
