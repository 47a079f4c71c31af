"""Tokens of CI systems: verified against an issuer on loopback, and every way to get one wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from api_fixtures import Serve, Served, assert_problem, onnx_bytes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from service.api import callers, tokens
from service.jobs.audit import list_audit
from service.store.records import AuditFilter

AUDIENCE = "https://tilewright.example"
WELL_KNOWN = "/.well-known/openid-configuration"


@cache
def rsa_key(number: int, bits: int = 2048) -> rsa.RSAPrivateKey:
    del number
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public(key: Any, name: str, **changes: Any) -> dict[str, Any]:
    algorithm = jwt.algorithms.ECAlgorithm if hasattr(key, "curve") else jwt.algorithms.RSAAlgorithm
    return {
        **algorithm.to_jwk(key.public_key(), as_dict=True),
        "kid": name,
        "use": "sig",
        **changes,
    }


@dataclass
class Issuing:
    """An issuer: what it answers by path, and what it was asked."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def publish(self, *keys: dict[str, Any]) -> None:
        self.answers["/keys"] = {"keys": list(keys)}
        self.answers.setdefault(WELL_KNOWN, {"issuer": self.url, "jwks_uri": f"{self.url}/keys"})

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        given = {
            "iss": self.url, "aud": AUDIENCE, "sub": "repo:acme/npu:ref:refs/heads/main",
            "repository": "acme/npu", "ref": "refs/heads/main", "iat": now, "nbf": now,
            "exp": now + 300, **changes,
        }  # fmt: skip
        return {name: value for name, value in given.items() if value is not None}

    def token(
        self, key: Any = None, name: str = "k1", algorithm: str = "RS256", **changes: Any
    ) -> str:
        used = rsa_key(1) if key is None else key
        claims = json.dumps(self.claims(**changes)).encode()  # jwt.encode refuses what is wrong
        return jwt.PyJWS().encode(claims, used, algorithm, headers={"kid": name})


@pytest.fixture
def issuers() -> Iterator[Callable[[], Issuing]]:
    """Servers on loopback; a string is sent as it is, a dict as JSON, a number is a status."""
    servers: list[ThreadingHTTPServer] = []

    def start() -> Issuing:
        made = Issuing()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                made.asked.append(self.path)
                answer = made.answers.get(self.path, 404)
                status = answer if isinstance(answer, int) else 200
                if isinstance(answer, str) and answer.startswith("http"):
                    self.send_response(302)
                    self.send_header("Location", answer)
                    self.end_headers()
                    return
                body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        made.publish(public(rsa_key(1), "k1"))
        return made

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def issuer(issuers: Callable[[], Issuing]) -> Issuing:
    return issuers()


def trusting(issuer: Issuing, **changes: Any) -> dict[str, Any]:
    return {
        "issuer": issuer.url, "audience": AUDIENCE,
        "rules": [{"claims": {"repository": "acme/npu", "ref": "refs/heads/*"}, "project": "npu"}],
        **changes,
    }  # fmt: skip


@pytest.fixture
def served(serve: Serve, issuer: Issuing) -> Served:
    return serve(worker=False, require_key=True, guess_rate="", trusted_issuers=[trusting(issuer)])


def ask(served: Served, token: str, path: str = "/v1/jobs") -> Any:
    return served.http.get(path, headers={"Authorization": f"Bearer {token}"})


def refused(served: Served, token: str) -> str:
    answer = ask(served, token)
    problem = assert_problem(answer, 401, "TW-SVC-019")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert token not in answer.text
    return str(problem["detail"])


def test_a_token_is_a_key_of_its_project(served: Served, issuer: Issuing) -> None:
    sent = {"Authorization": f"Bearer {issuer.token()}"}
    for _ in range(3):
        assert served.http.get("/v1/models", headers=sent).json()["items"] == []
    made = served.http.post("/v1/models", content=onnx_bytes(), headers=sent)
    assert made.status_code == 201
    # Another token of the same branch, and the project's own limits and audit log.
    assert len(ask(served, issuer.token(jti="2"), "/v1/models").json()["items"]) == 1
    assert ask(served, issuer.token(), "/v1/limits").json()["project"] == "npu"
    assert_problem(ask(served, issuer.token(), "/v1/keys"), 403, "TW-SVC-020")
    rows, _ = list_audit(
        served.services.database, AuditFilter(outcome=None, route="POST /v1/models"),
        cursor=None, limit=9,
    )  # fmt: skip
    [row] = rows
    assert (row.project, row.key_id) == ("npu", "ci:repo:acme/npu:ref:refs/heads/main")
    assert row.who.startswith(issuer.url)
    # Keys were fetched once for all of it.
    assert issuer.asked == [WELL_KNOWN, "/keys"]


def test_keys_of_other_kinds_are_taken_when_allowed(serve: Serve, issuer: Issuing) -> None:
    issuer.publish(public(ec_key(), "e"), public(rsa_key(1), "p", alg="PS256"))
    allowed = trusting(issuer, algorithms=["ES256", "PS256"])
    served = serve(worker=False, require_key=True, trusted_issuers=[allowed])
    assert ask(served, issuer.token(ec_key(), "e", "ES256")).status_code == 200
    assert ask(served, issuer.token(name="p", algorithm="PS256")).status_code == 200
    issuer.publish(public(rsa_key(1), "r"))
    assert "not signed" in refused(served, issuer.token(name="p", algorithm="RS256"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"aud": "https://other.example"}, "another audience"),
        ({"aud": None}, "lacks the claim aud"),
        ({"aud": []}, "lacks the claim aud"),
        ({"exp": 1}, "has expired"),
        ({"exp": None}, "lacks the claim exp"),
        ({"exp": 1e999}, "not signed"),
        ({"nbf": 10**11}, "not valid yet"),
        ({"iat": 10**11}, "not valid yet"),
        ({"iat": None}, "lacks the claim iat"),
        ({"sub": None}, "lacks the claim sub"),
        ({"sub": 7}, "not signed"),
        ({"ref": "refs/tags/v1"}, "no rule"),
        ({"ref": None}, "no rule"),
        ({"ref": ["refs/heads/main"]}, "no rule"),
        ({"repository": "acme/npu-evil"}, "no rule"),
        ({"repository": "evil/acme/npu"}, "no rule"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_claims_that_are_not_meant(
    served: Served, issuer: Issuing, changes: dict[str, Any], told: str
) -> None:
    assert told in refused(served, issuer.token(**changes))


def test_clocks_may_differ_by_a_minute(served: Served, issuer: Issuing) -> None:
    now = int(time.time())
    assert ask(served, issuer.token(exp=now - 30)).status_code == 200
    assert ask(served, issuer.token(iat=now + 30, nbf=now + 30)).status_code == 200
    assert "has expired" in refused(served, issuer.token(exp=now - 90))
    assert "not valid yet" in refused(served, issuer.token(nbf=now + 90))


def test_a_token_is_remembered_no_longer_than_it_lasts(
    served: Served, issuer: Issuing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "KNOWN_S", 3600.0)
    monkeypatch.setattr(tokens, "SKEW_S", 0.0)
    short = issuer.token(exp=int(time.time()) + 2)
    assert ask(served, short).status_code == 200
    deadline = time.monotonic() + 10
    while ask(served, short).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "has expired" in refused(served, short)


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def forged(issuer: Issuing, header: dict[str, Any], secret: bytes | None = None) -> str:
    """A token by somebody who has no private key of the issuer's."""
    text = f"{part({'kid': 'k1', **header})}.{part(issuer.claims())}"
    signed = b"" if secret is None else hmac.digest(secret, text.encode(), hashlib.sha256)
    return f"{text}.{part(signed)}"


def test_signatures_that_prove_nothing(served: Served, issuer: Issuing) -> None:
    """No signature, the public key as a shared secret, keys that the token brings itself."""
    key = rsa_key(1).public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    mine = public(rsa_key(2), "k1")
    header, _, _ = issuer.token().split(".")
    own = jwt.encode(issuer.claims(), rsa_key(2), "RS256", headers={"kid": "k1", "jwk": mine})
    elsewhere = jwt.encode(
        issuer.claims(), rsa_key(2), "RS256",
        headers={"kid": "k1", "jku": f"{issuer.url}/mine", "x5u": f"{issuer.url}/mine"},
    )  # fmt: skip
    issuer.answers["/mine"] = {"keys": [mine]}
    stolen = issuer.token().rsplit(".", 1)
    other = part(issuer.claims(repository="acme/npu", ref="refs/heads/evil"))
    for token in (
        *(forged(issuer, {"alg": name}) for name in ("none", "None", "NONE", "", "RS256", "HS256")),
        *(forged(issuer, {"alg": "HS256"}, secret) for secret in (pem, der, pem.strip())),
        forged(issuer, {"alg": "RS256", "b64": False, "crit": ["b64"]}),
        issuer.token(rsa_key(2)), own, elsewhere,
        f"{header}.{other}.{stolen[1]}", f"{stolen[0]}.", f"{stolen[0]}.AAAA",
    ):  # fmt: skip
        detail = refused(served, token)
        assert "signed" in detail or "no token that can be read" in detail, detail
    assert "/mine" not in issuer.asked


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")
def test_a_secret_in_a_set_of_keys_is_no_key(serve: Serve, issuer: Issuing) -> None:
    """Nor is one for encryption, one that is too short, or what is none at all."""
    secret = b"0" * 32
    issuer.publish(
        {"kty": "oct", "k": part(secret), "kid": "k1", "alg": "HS256"},
        {"kty": "oct", "k": part(secret), "kid": "k2", "alg": "RS256"},
        public(rsa_key(1), "k3", use="enc"), public(rsa_key(3, 1024), "k4"),
        {"kid": "k5"}, {"kty": "RSA", "kid": "k6", "n": "x"}, {"kty": "EC", "kid": "k7"},
        public(rsa_key(1), "good"),
    )  # fmt: skip
    served = serve(worker=False, require_key=True, trusted_issuers=[trusting(issuer)])
    for name in ("k1", "k2"):
        assert "does not have" in refused(
            served, forged(issuer, {"alg": "HS256", "kid": name}, secret)
        )
    assert "does not have" in refused(served, issuer.token(name="k3"))
    assert "not signed" in refused(served, issuer.token(rsa_key(3, 1024), "k4"))
    assert ask(served, issuer.token(name="good")).status_code == 200


def test_only_configured_issuers_are_asked(
    served: Served, issuer: Issuing, issuers: Callable[[], Issuing]
) -> None:
    evil = issuers()
    for token in (
        evil.token(), issuer.token(iss=evil.url), issuer.token(iss=f"{issuer.url}/"),
        issuer.token(iss=issuer.url.replace("http://", "http://x@")), issuer.token(iss=None),
        issuer.token(iss=[issuer.url]), issuer.token(iss="file:///etc/passwd"),
    ):  # fmt: skip
        assert "token" in refused(served, token)
    assert evil.asked == []
    assert issuer.asked == []


@pytest.mark.parametrize("where", ["description", "redirect of it", "redirect of keys", "issuer"])
def test_an_issuer_sends_nobody_elsewhere(
    serve: Serve, issuer: Issuing, issuers: Callable[[], Issuing], where: str
) -> None:
    other = issuers()
    described = {"issuer": issuer.url, "jwks_uri": f"{other.url}/keys"}
    match where:
        case "description":
            issuer.answers[WELL_KNOWN] = described
        case "redirect of it":
            issuer.answers[WELL_KNOWN] = f"{other.url}{WELL_KNOWN}"
        case "redirect of keys":
            issuer.answers["/keys"] = f"{other.url}/keys"
        case "issuer":
            issuer.answers[WELL_KNOWN] = {**described, "issuer": other.url}
    served = serve(worker=False, require_key=True, trusted_issuers=[trusting(issuer)])
    assert_problem(ask(served, issuer.token()), 503, "TW-SVC-005")
    assert other.asked == []
    named = trusting(issuer, jwks_uri=f"{other.url}/keys")
    again = serve(worker=False, require_key=True, trusted_issuers=[named])
    assert ask(again, issuer.token()).status_code == 200
    assert other.asked == ["/keys"]


@pytest.mark.parametrize(
    "answer", [500, "", "[]", "{", "[" * 100_000, "{}", '{"keys": {}}', "x" * (1 << 20)],
    ids=["status", "empty", "list", "half", "deep", "no keys", "keys no list", "large"],
)  # fmt: skip
def test_an_issuer_that_answers_badly(serve: Serve, issuer: Issuing, answer: Any) -> None:
    """Is asked once in a while; others are not held up, and it may get well."""
    issuer.answers["/keys"] = answer
    served = serve(worker=False, require_key=True, trusted_issuers=[trusting(issuer)])
    for _ in range(3):
        problem = assert_problem(ask(served, issuer.token()), 503, "TW-SVC-005")
        assert problem["retryable"]
    assert issuer.asked == [WELL_KNOWN, "/keys"]


def test_a_flood_of_invented_keys_is_one_question(served: Served, issuer: Issuing) -> None:
    assert ask(served, issuer.token()).status_code == 200
    asked = len(issuer.asked)
    flood = [issuer.token(name=f"invented-{number}") for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda token: ask(served, token).status_code, flood))
    assert set(codes) == {401}
    assert len(issuer.asked) == asked  # it was asked a moment ago
    assert ask(served, issuer.token(jti="x")).status_code == 200


def test_many_at_once_ask_once(served: Served, issuer: Issuing) -> None:
    given = [issuer.token(jti=str(number)) for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda token: ask(served, token).status_code, given))
    assert set(codes) == {200}
    assert issuer.asked == [WELL_KNOWN, "/keys"]


def test_keys_rotate(served: Served, issuer: Issuing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new name is asked for, a dropped key ends with the next fetch, an outage is no end."""
    monkeypatch.setattr(callers, "KNOWN_S", 0.0)
    assert ask(served, issuer.token()).status_code == 200
    issuer.publish(public(rsa_key(2), "k2"))
    fresh = issuer.token(rsa_key(2), "k2")
    assert "does not have" in refused(served, fresh)  # asked a moment ago
    monkeypatch.setattr(tokens, "REFETCH_S", 0.0)
    assert ask(served, fresh).status_code == 200
    assert "does not have" in refused(served, issuer.token())
    issuer.answers["/keys"] = 500
    monkeypatch.setattr(tokens, "FRESH_S", 0.0)
    assert ask(served, fresh).status_code == 200
    monkeypatch.setattr(tokens, "STALE_S", 0.0)
    assert_problem(ask(served, fresh), 503, "TW-SVC-005")


def test_texts_that_are_no_tokens(served: Served, issuer: Issuing) -> None:
    good = issuer.token()
    deep = part(("[" * 3000 + "]" * 3000).encode())
    assert "8192" in refused(served, good + "A" * 8192)
    assert "8192" in refused(served, "a" * 30_000 + "..")
    for text in (
        "a.b.c", "..", f"{good}.x"[:-2] + ".", f"{part({'alg': 'RS256'})}.{part({})}.AA",
        f"{part([])}.{part({})}.AA", f"{part({'alg': 'RS256', 'kid': 1})}.{part({})}.AA",
        f"{deep}.{deep}.AA", f"{part({'alg': 'RS256', 'kid': 'k1'})}.{deep}.AA",
        f"{part({'alg': 'RS256', 'kid': 'k1'})}.{part([issuer.url])}.AA",
        f"{part(bytes(range(256)))}.{part(b'x')}.AA", "\xe9.\xe9.\xe9", good[1:], good.upper(),
    ):  # fmt: skip
        answer = served.http.get(
            "/v1/jobs", headers={"Authorization": f"Bearer {text}".encode("latin-1")}
        )
        assert_problem(answer, 401, "TW-SVC-019")
    assert issuer.asked == []


def test_wrong_tokens_are_guesses(serve: Serve, issuer: Issuing) -> None:
    served = serve(
        worker=False, require_key=True, guess_rate="3/hour", trusted_issuers=[trusting(issuer)]
    )
    codes = [ask(served, issuer.token(rsa_key(2))).status_code for _ in range(5)]
    assert codes == [401] * 3 + [429] * 2


def test_branches_with_any_name_are_written_down(served: Served, issuer: Issuing) -> None:
    sent = {
        "Authorization": f"Bearer {issuer.token(sub='a' + chr(0) + chr(27) + '[31m' + 'b' * 500)}"
    }
    assert served.http.post("/v1/models", content=onnx_bytes(), headers=sent).status_code == 201
    rows, _ = list_audit(served.services.database, AuditFilter(), cursor=None, limit=9)
    [row] = rows
    assert row.key_id is not None
    assert row.key_id.startswith("ci:a??[31mb")
    assert len(row.key_id) == 200
