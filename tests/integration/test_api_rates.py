"""Rates of requests: what answers say of them, who is counted with whom, what a guesser gets."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

import httpx
import pytest
from api_fixtures import Serve, Served, assert_problem

from service.api import callers
from service.jobs.keys import create_key, revoke_key
from service.keys import Scope, new_key
from service.settings import Settings

POLICY = re.compile(r'"([a-z]+-\d+s)";q=(\d+);w=(\d+)')
LEFT = re.compile(r'"([a-z]+-\d+s)";r=(\d+);t=(\d+)')


def key(served: Served, project: str = "a", **changes: Any) -> dict[str, str]:
    _, text = create_key(
        served.services.database, project=project, name=project,
        scopes=[Scope.READ, Scope.WRITE], **changes,
    )  # fmt: skip
    return {"Authorization": f"Bearer {text}"}


def told(answer: httpx.Response) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """Both fields, by the name of the rate; every item has the draft's form."""
    read = []
    for field, form in (("RateLimit-Policy", POLICY), ("RateLimit", LEFT)):
        found = [form.fullmatch(part) for part in answer.headers[field].split(", ")]
        assert all(found), answer.headers[field]
        read.append({m[1]: (int(m[2]), int(m[3])) for m in found if m})
    assert set(read[0]) == set(read[1])
    return read[0], read[1]


def test_answers_say_what_is_left(serve: Serve) -> None:
    served = serve(worker=False, require_key=True, key_rate="5/hour;100/day")
    sent = key(served)
    left = []
    for _ in range(5):
        answer = served.http.get("/v1/jobs", headers=sent)
        assert answer.status_code == 200
        policy, rest = told(answer)
        assert policy == {"key-3600s": (5, 3600), "key-86400s": (100, 86400)}
        assert all(1 <= t <= policy[name][1] for name, (_, t) in rest.items())
        left.append((rest["key-3600s"][0], rest["key-86400s"][0]))
    assert left == [(4 - n, 99 - n) for n in range(5)]
    refused = served.http.get("/v1/jobs", headers=sent)
    problem = assert_problem(refused, 429, "TW-SVC-021")
    assert problem["retryable"]
    assert (problem["limit"], problem["actual"]) == ("5 in 3600 s", "5 and this")
    policy, rest = told(refused)
    assert rest["key-3600s"][0] == 0
    assert int(refused.headers["retry-after"]) == rest["key-3600s"][1]


def test_a_rate_comes_back(serve: Serve) -> None:
    served = serve(worker=False, require_key=True, key_rate="2/second")
    sent = key(served)
    while served.http.get("/v1/jobs", headers=sent).status_code == 200:
        pass
    deadline = time.monotonic() + 10
    while served.http.get("/v1/jobs", headers=sent).status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_each_key_has_its_own_and_a_project_one_of_all(serve: Serve) -> None:
    """A key that is over its rate takes nothing of the project's."""
    served = serve(worker=False, require_key=True, key_rate="3/hour", project_rate="5/hour")
    one, two, other = key(served), key(served), key(served, "b")
    codes = [served.http.get("/v1/jobs", headers=one).status_code for _ in range(6)]
    assert codes == [200] * 3 + [429] * 3
    answers = [served.http.get("/v1/jobs", headers=two) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert "project-3600s" in answers[-1].json()["detail"]
    assert served.http.get("/v1/jobs", headers=other).status_code == 200


def test_a_key_may_have_a_rate_of_its_own(serve: Serve) -> None:
    served = serve(worker=False, require_key=True, key_rate="3/hour")
    sent = key(served, rate="7/minute")
    assert told(served.http.get("/v1/jobs", headers=sent))[0] == {"key-60s": (7, 60)}


def test_who_needs_no_key_is_not_counted(serve: Serve) -> None:
    served = serve(worker=False, key_rate="1/hour", project_rate="1/hour")
    for _ in range(3):
        answer = served.http.get("/v1/jobs")
        assert answer.status_code == 200
        assert "ratelimit" not in answer.headers
    sent = key(served)
    codes = [served.http.get("/v1/jobs", headers=sent).status_code for _ in range(2)]
    assert codes == [200, 429]
    assert served.http.get("/healthz", headers=sent).status_code == 200


def test_servers_count_together_in_redis(serve: Serve, redis_url: str) -> None:
    shared = {"rate_store_url": redis_url, "key_rate": "4/hour", "require_key": True}
    first = serve(worker=False, **shared)
    second = serve(worker=False, **shared)
    sent = key(first, f"p{secrets.token_hex(6)}")
    codes = [s.http.get("/v1/jobs", headers=sent).status_code for s in (first, second) * 3]
    assert codes == [200] * 4 + [429] * 2


def test_a_store_that_is_away_refuses_nobody(serve: Serve) -> None:
    served = serve(
        worker=False, require_key=True, key_rate="1/hour", rate_store_url="redis://127.0.0.1:1/0"
    )
    sent = key(served)
    for _ in range(3):
        assert served.http.get("/v1/jobs", headers=sent).status_code == 200


def test_guesses_are_counted_by_address(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many, keys that are new here are not looked at; those that were good lately are."""
    served = serve(worker=False, require_key=True, guess_rate="4/hour")
    monkeypatch.setattr(callers, "KNOWN_S", 0.0)
    good, fresh = key(served), key(served)
    assert served.http.get("/v1/jobs", headers=good).status_code == 200
    looked: list[str] = []
    original = callers.recognised
    monkeypatch.setattr(
        callers, "recognised", lambda db, text: looked.append(text) or original(db, text)
    )
    wrong = [{"Authorization": f"Bearer {new_key()[1]}"} for _ in range(9)]
    codes = [served.http.get("/v1/jobs", headers=sent).status_code for sent in wrong]
    assert codes == [401] * 4 + [429] * 5
    assert len(looked) == 4
    refused = served.http.get("/v1/jobs", headers=fresh)
    assert "wrong keys" in assert_problem(refused, 429, "TW-SVC-021")["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    assert served.http.get("/v1/jobs", headers=good).status_code == 200


def test_a_dead_key_is_a_guess(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(worker=False, require_key=True, guess_rate="2/hour")
    monkeypatch.setattr(callers, "KNOWN_S", 0.0)
    record, text = create_key(served.services.database, project="a", name="a", scopes=[Scope.READ])
    sent = {"Authorization": f"Bearer {text}"}
    assert served.http.get("/v1/jobs", headers=sent).status_code == 200
    revoke_key(served.services.database, record.id)
    codes = [served.http.get("/v1/jobs", headers=sent).status_code for _ in range(5)]
    assert codes == [401] * 2 + [429] * 3


@pytest.mark.parametrize("wrong", ["0/minute", "5", "5/week", "5/minute;", "-1/day", "5 per day"])
@pytest.mark.parametrize("name", ["key_rate", "project_rate", "guess_rate"])
def test_a_rate_that_is_none_is_refused(name: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        Settings(**{name: wrong})


def test_a_store_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="rate_store_url"):
        Settings(rate_store_url="memcached://x")
