"""`GET /v1/compare`, and the command line on jobs of a server."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest
from api_fixtures import PRESET, Serve, Served, assert_problem, onnx_bytes
from typer.testing import CliRunner, Result

from service.api.schemas.compare import ComparisonAnswer
from service.cli.main import app


def job(served: Served, what: str, **changes: Any) -> str:
    """A job that has ended, of a model whose bytes say what it gives."""
    model = served.model(onnx_bytes(what.encode()), what)["id"]
    body = {"model": model, "hardware": PRESET, **changes}
    job_id = str(served.http.post("/v1/jobs", json=body).json()["id"])
    served.ended(job_id)
    return job_id


def ask(served: Served, base: str, head: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return served.http.get("/v1/compare", params={"base": base, "head": head}, headers=named)


def diff(served: Served, *words: str) -> Result:
    return CliRunner().invoke(app, ["diff", *words], env={"TILEWRIGHT_SERVER": served.url})


def test_two_jobs_by_id_or_label(serve: Serve) -> None:
    served = serve("compared")
    base, head = job(served, "base", label="main"), job(served, "slow", label="change")
    found = ask(served, base, head)
    assert found.status_code == 200, found.text
    body = found.json()
    ComparisonAnswer.model_validate(body)
    assert (body["verdict"], body["base"]["missing"]) == ("slower", [])
    assert [(r["kind"], r["where"]) for r in body["reasons"]] == [
        ("spec", "/levels/DRAM/read_bytes_per_cycle")
    ]
    moved = [(row["head_nodes"], row["delta_cycles"]) for row in body["layers"]
             if row["kind"] != "same"]  # fmt: skip
    assert moved == [(["a"], 20), (["c"], 60)]
    labelled = ask(served, "main", "change").json()
    assert labelled["base"]["name"] == "main"
    assert labelled["causes"] == body["causes"]
    again = job(served, "base", label="change")  # its youngest that succeeded
    assert ask(served, "main", "change").json()["verdict"] == "same"
    assert ask(served, again, again).json()["headline"] == "no difference: 175 cycles, 175 ns"


def test_text_is_given_where_it_is_asked_for_first_and_nothing_twice(serve: Serve) -> None:
    served = serve("compared")
    base, head = job(served, "base"), job(served, "slow")
    plain = ask(served, base, head)
    assert plain.headers["vary"] == "Accept"
    tags = {plain.headers["etag"]}
    for media_type, begin in (("text/markdown", "**slower by 45.7 %"),
                              ("text/html", "<!doctype html>")):  # fmt: skip
        found = ask(served, base, head, accept=f"{media_type}, application/json")
        assert found.headers["content-type"].startswith(media_type)
        assert found.text.startswith(begin)
        tags.add(found.headers["etag"])
    assert len(tags) == 3
    known = ask(served, base, head, if_none_match=plain.headers["etag"])
    assert (known.status_code, known.content) == (304, b"")
    assert ask(served, head, base, if_none_match=plain.headers["etag"]).status_code == 200


def test_refusals(serve: Serve) -> None:
    served = serve("compared")
    base, old, broken = (job(served, what) for what in ("base", "old", "broken"))
    unknown = assert_problem(ask(served, base, "nobody"), 404, "TW-SVC-001")
    assert "no job has this id" in unknown["detail"]
    found = assert_problem(ask(served, base, old), 422, "TW-CMP-001")
    assert (found["pointer"], found["limit"], found["actual"]) == ("/schema_version", [3], "1")
    assert_problem(ask(served, broken, base), 422, "TW-RUN-001")
    assert_problem(served.http.get("/v1/compare", params={"base": base}), 422, "TW-SVC-004")
    assert_problem(ask(served, base, ""), 422, "TW-SVC-004")


def test_a_job_that_has_not_succeeded_is_no_side(serve: Serve) -> None:
    served = serve(worker=False)
    waiting = str(served.submit()["id"])
    found = assert_problem(ask(served, waiting, waiting), 409, "TW-CMP-002")
    assert found["actual"] == "queued"
    result = diff(served, waiting, waiting)
    assert result.exit_code == 3
    assert "TW-CMP-002" in result.stderr


def test_a_job_without_a_report_is_said_to_have_none(serve: Serve) -> None:
    served = serve()  # its report holds nothing of a report
    one = str(served.submit()["id"])
    served.ended(one)
    assert_problem(ask(served, one, one), 422, "TW-CMP-001")


def test_the_command_line_says_the_same_of_jobs_and_files(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> None:
    served = serve("compared")
    base, head = job(served, "base", label="main"), job(served, "slow")
    folder = tmp_path_factory.mktemp("fetched")
    served.client.fetch_artifacts(head, folder)
    result = diff(served, "main", head, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    by_api = ask(served, "main", head).json()
    assert told == by_api == served.client.compare("main", head)
    mixed = json.loads(diff(served, base, str(folder), "--json").stdout)
    assert mixed["layers"] == told["layers"] and mixed["reasons"] == told["reasons"]
    target = folder / "both.json.gz"
    assert diff(served, "main", str(folder), "--trace", str(target)).exit_code == 0
    events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    assert len({event["pid"] for event in events}) == 4
    missing = diff(served, "nobody", head)
    assert missing.exit_code == 3
    assert "nobody: no job has this id, and none that succeeded has this label" in missing.stderr


def test_of_a_bundle_only_what_is_compared_is_sent(serve: Serve) -> None:
    served = serve("compared")
    base = job(served, "base")
    size = next(int(str(row["size_bytes"])) for row in served.client.artifacts(base)
                if row["name"] == "bundle")  # fmt: skip
    assert size > 200_000
    sent = 0

    def count(response: httpx.Response) -> None:
        nonlocal sent
        sent += len(response.read())

    from service.client import Client
    from service.compare.served import read_job

    with httpx.Client(base_url=served.url, event_hooks={"response": [count]}) as http:
        run = read_job(Client(served.url, http=http), base)
    assert run.spec is not None and run.missing == ()
    assert sent < size


def test_the_schema_names_fields_and_forms(serve: Serve) -> None:
    schema = serve(worker=False).http.get("/openapi.json").json()
    route = schema["paths"]["/v1/compare"]["get"]
    assert {"application/json", "text/markdown", "text/html"} <= set(
        route["responses"]["200"]["content"]
    )
    fields = schema["components"]["schemas"]["FigureAnswer"]["properties"]
    assert fields["delta"]["description"] == "Head less base."
    assert [p["name"] for p in route["parameters"]] == ["base", "head"]
