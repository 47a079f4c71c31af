"""What one run was like: counted from look-ups, and read from reports that still told of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.api.routes import artifacts
from service.cli.sources import open_source
from service.errors import NotFound
from worker.compiler.cache import CacheEvent
from worker.report.run import is_apart, run_document, with_outcomes


def test_a_kernel_is_a_hit_when_every_look_up_for_it_was() -> None:
    events = [
        CacheEvent("schedule", "d0", "hit", "conv", "a"),
        CacheEvent("program", "d1", "miss", "conv", "a"),
        CacheEvent("schedule", "d2", "hit", "fc", "b"),
        CacheEvent("schedule", "d3", "miss", "fc", "a candidate that was dropped"),
    ]
    found = run_document(("b", "a", "never looked up"), events, {"ingest": 0.5})
    cache: Any = found["cache"]
    assert list(cache["units"].items()) == [("b", "hit"), ("a", "miss")]
    assert (cache["hits"], cache["misses"], len(cache["entries"])) == (1, 1, 4)
    assert cache["entries"][3] == {
        "kind": "schedule", "digest": "d3", "outcome": "miss", "node": "fc",
    }  # fmt: skip
    assert found["timings"] == {"ingest": 0.5}


@pytest.mark.parametrize(
    ("report", "beside", "found"),
    [
        ({"schema_version": 3}, {"cache": {"hits": 1}}, {"cache": {"hits": 1}}),
        ({"schema_version": 3}, None, {}),
        ({"schema_version": 3}, [], {}),
        (
            {
                "schema_version": 2, "timings": {"ingest": 1.5}, "cache": {"hits": 3},
                "layers": [{"signature": "a", "cache": "hit"}, {"signature": None, "cache": None}],
            },
            {"cache": "of another compile into the same folder"},
            {"cache": {"hits": 3, "units": {"a": "hit"}}, "timings": {"ingest": 1.5}},
        ),
    ],
    ids=["beside it", "alone, as in a bundle", "not an object", "in an older report"],
)  # fmt: skip
def test_where_a_run_is_told_of(
    tmp_path: Path, report: dict[str, Any], beside: object, found: dict[str, Any]
) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report))
    if beside is not None:
        (tmp_path / "run.json").write_text(json.dumps(beside))
    with open_source(str(tmp_path), None, None) as source:
        assert source.run(source.report()) == found


@pytest.mark.parametrize("version", [None, "3", [3], 2.5])
def test_a_version_that_is_no_whole_number_is_an_old_one(version: object) -> None:
    assert is_apart({"schema_version": version}) is False


@pytest.mark.parametrize(
    ("layers", "run", "outcomes"),
    [
        (
            [{"signature": "a"}, {"signature": None}], {"cache": {"units": {"a": "hit"}}},
            ["hit", None],
        ),
        ([{"signature": ["a"]}, 7, "row"], {"cache": {"units": {"a": "hit"}}}, [None]),
        ([{"signature": "a"}], {"cache": {"units": ["a"]}}, [None]),
        ([{"signature": "a"}], {"cache": "a"}, [None]),
        ({"signature": "a"}, {}, []),
        (None, {}, []),
    ],
)  # fmt: skip
def test_rows_of_any_shape_get_outcomes_or_none(
    layers: object, run: dict[str, Any], outcomes: list[object]
) -> None:
    assert [row["cache"] for row in with_outcomes(layers, run)] == outcomes


@pytest.mark.parametrize("written", [b"[]", b"{", b"\xff", b"null"])
def test_an_artifact_that_is_no_object_is_not_found(
    written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's own process wrote it: the server answers with a sentence, not with 500."""
    monkeypatch.setattr(artifacts, "find_artifact", lambda *_: SimpleNamespace(sha256="0"))
    monkeypatch.setattr(artifacts, "read_bytes", lambda *_: written)
    state: Any = SimpleNamespace(blobs=None)
    for route in (artifacts.get_layers, artifacts.get_cache, artifacts.get_run):
        with pytest.raises(NotFound, match="no JSON object"):
            route("job", state, "local")
