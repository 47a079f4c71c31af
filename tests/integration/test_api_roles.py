"""Roles: names of scopes; who leads a project gives it keys, and none that may do more."""

from __future__ import annotations

import time
from itertools import pairwise

import httpx
import pytest
from api_fixtures import Serve, assert_problem
from keyed import BOTH, as_project, key_of, sent

from service.api import callers
from service.jobs import keys
from service.keys import SCOPES_OF, Role, Scope, role_of

DAY_S = 86400.0


def test_a_lead_gives_keys_to_its_own_project(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes, lists, changes and revokes keys that may do no more than its own, there alone."""
    monkeypatch.setattr(callers, "KNOWN_S", 0.0)
    served = serve(worker=False, require_key=True)
    theirs, _ = key_of(served, "b")
    above, _ = key_of(served, "a", Scope.READ, Scope.ADMIN)
    with as_project(served, "a", *SCOPES_OF[Role.LEAD]) as lead:
        made = lead.post("/v1/keys", json={"name": "ci", "role": "developer"}).json()
        assert (made["project"], made["role"]) == ("a", "developer")
        assert served.http.get("/v1/jobs", headers=sent(made["key"])).status_code == 200
        second = lead.post("/v1/keys", json={"name": "deputy", "role": "lead", "project": "a"})
        assert second.status_code == 201
        listed = {row["id"] for row in lead.get("/v1/keys").json()["items"]}
        assert {made["id"], second.json()["id"], above} < listed
        assert theirs not in listed

        for body, pointer in (
            ({"role": "developer", "project": "b"}, "/project"), ({"role": "admin"}, "/scopes"),
            ({"scopes": ["read", "metrics"]}, "/scopes"), ({"role": "operator"}, "/scopes"),
            ({"role": "reader", "rate": "9/second"}, "/rate"),
        ):  # fmt: skip
            refused = lead.post("/v1/keys", json={"name": "x", **body})
            problem = assert_problem(refused, 403, "TW-SVC-020")
            assert (problem["pointer"], problem["limit"]) == (pointer, "admin")
        role = {"role": "reader"}
        assert_problem(lead.put(f"/v1/keys/{theirs}/role", json=role), 404, "TW-SVC-001")
        assert_problem(lead.delete(f"/v1/keys/{theirs}"), 404, "TW-SVC-001")
        assert_problem(lead.put(f"/v1/keys/{above}/role", json=role), 403, "TW-SVC-020")
        assert_problem(lead.delete(f"/v1/keys/{above}"), 403, "TW-SVC-020")
        more = {"role": "operator"}
        assert_problem(lead.put(f"/v1/keys/{made['id']}/role", json=more), 403, "TW-SVC-020")
        assert_problem(lead.put("/v1/limits/a", json={}), 403, "TW-SVC-020")
        live = {row.id for row in keys.list_keys(served.services.database) if row.is_live}
        assert {theirs, above, made["id"], second.json()["id"]} <= live
        names = {row.name for row in keys.list_keys(served.services.database)}
        assert "x" not in names

        assert lead.put(f"/v1/keys/{made['id']}/role", json=role).json()["role"] == "reader"
        assert lead.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert_problem(served.http.get("/v1/jobs", headers=sent(made["key"])), 401, "TW-SVC-019")
        rows = lead.get("/v1/audit").json()["items"]
        assert {row["project"] for row in rows} == {"a"}
        assert sum(row["outcome"] == "refused" for row in rows) >= 8
        assert lead.get("/v1/audit", params={"project": "b"}).json()["items"] == []
    with as_project(served, "a", *BOTH) as developer:
        for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("GET", "/v1/audit")):
            problem = assert_problem(developer.request(method, path, json={}), 403, "TW-SVC-020")
            assert problem["limit"] == "keys"


def test_a_key_does_not_outlast_the_lead_that_makes_it(serve: Serve) -> None:
    served = serve(worker=False, require_key=True)
    _, text = key_of(served, "a", *SCOPES_OF[Role.LEAD], lasts_s=2 * DAY_S)

    def asked(**more: int) -> httpx.Response:
        body = {"name": "ci", "role": "reader", **more}
        return served.http.post("/v1/keys", json=body, headers=sent(text))

    for more in ({}, {"days": 2}):
        assert assert_problem(asked(**more), 403, "TW-SVC-020")["pointer"] == "/days"
    assert asked(days=1).json()["expires"] < time.time() + 1.1 * DAY_S
    made = keys.list_keys(served.services.database)
    assert sum(row.name == "ci" for row in made) == 1


def test_who_was_revoked_makes_no_keys_while_it_is_still_known(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "KNOWN_S", 60.0)
    served = serve(worker=False, require_key=True)
    other, _ = key_of(served, "a", Scope.READ)
    for scopes in (SCOPES_OF[Role.LEAD], SCOPES_OF[Role.ADMIN]):
        mine, text = key_of(served, "a", *scopes)
        assert served.http.get("/v1/keys", headers=sent(text)).status_code == 200
        keys.revoke_key(served.services.database, mine)
        assert served.http.get("/v1/keys", headers=sent(text)).status_code == 200  # still known
        body = {"name": "x", "role": "reader"}
        made = served.http.post("/v1/keys", json=body, headers=sent(text))
        assert_problem(made, 401, "TW-SVC-019")
        role = served.http.put(
            f"/v1/keys/{other}/role", json={"role": "developer"}, headers=sent(text)
        )
        assert_problem(role, 401, "TW-SVC-019")
    names = {row.name for row in keys.list_keys(served.services.database)}
    assert "x" not in names


def test_a_key_is_downgraded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live key loses what its new role does not have; nothing of it is left in a session."""
    monkeypatch.setattr(callers, "KNOWN_S", 0.0)
    served = serve(worker=False, require_key=True)
    with as_project(served, "ops", Scope.ADMIN) as http:
        made = http.post("/v1/keys", json={"name": "ci", "role": "admin", "project": "a"}).json()
        assert (made["role"], made["scopes"]) == ("admin", sorted(SCOPES_OF[Role.ADMIN]))
        own = sent(made["key"])
        asked = [
            ("GET", "/v1/jobs", "read"), ("POST", "/v1/uploads", "write"),
            ("GET", "/metrics", "metrics"), ("GET", "/v1/keys", "keys"),
            ("GET", "/v1/limits/a", "admin"),
        ]  # fmt: skip
        for role in reversed(Role):
            changed = http.put(f"/v1/keys/{made['id']}/role", json={"role": role})
            assert changed.json()["scopes"] == sorted(SCOPES_OF[role])
            assert changed.json()["role"] == role
            for method, path, needed in asked:
                answer = served.http.request(method, path, headers=own, json={"name": "u"})
                if needed in SCOPES_OF[role] or (needed, role) == ("keys", Role.ADMIN):
                    assert answer.status_code != 403, (role, path)
                else:
                    assert assert_problem(answer, 403, "TW-SVC-020")["limit"] == needed
        # A reader cannot raise itself, nor can who has every scope but admin.
        raised = served.http.put(f"/v1/keys/{made['id']}/role", headers=own, json={"role": "admin"})
        assert_problem(raised, 403, "TW-SVC-020")
        with as_project(served, "a", Scope.READ, Scope.WRITE, Scope.METRICS) as other:
            raised = other.put(f"/v1/keys/{made['id']}/role", json={"role": "admin"})
            assert_problem(raised, 403, "TW-SVC-020")
        assert http.delete(f"/v1/keys/{made['id']}").status_code == 204
        dead = http.put(f"/v1/keys/{made['id']}/role", json={"role": "admin"})
        assert_problem(dead, 409, "TW-SVC-002")
        assert_problem(
            http.put("/v1/keys/key_none/role", json={"role": "reader"}), 404, "TW-SVC-001"
        )
        for body in ({"name": "x"}, {"name": "x", "role": "reader", "scopes": ["read"]},
                     {"name": "x", "role": "boss"}):  # fmt: skip
            assert_problem(http.post("/v1/keys", json=body), 422, "TW-SVC-004")


def test_roles_are_nested_and_told_apart() -> None:
    held = [SCOPES_OF[role] for role in Role]
    for way in (Role.LEAD, Role.OPERATOR):
        nested = [SCOPES_OF[role] for role in (Role.READER, Role.DEVELOPER, way)]
        assert all(less < more for less, more in pairwise(nested))
    assert SCOPES_OF[Role.OPERATOR] < SCOPES_OF[Role.ADMIN]
    assert [role_of(scopes) for scopes in held] == list(Role)
    assert role_of({Scope.WRITE}) is None
