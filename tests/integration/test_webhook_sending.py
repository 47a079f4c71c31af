"""One attempt to send: names that lead inside, names that change, TLS, and what is not followed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from webhook_receiver import Receiver, receiver, status

from service.addresses import Allowed
from service.push.sending import Outcome, Sender

HEADERS = {"webhook-id": "msg_1"}


class Names:
    """A resolver that gives another answer each time it is asked, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return list(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


def send(url: str, names: Names, *allowed: str, timeout_s: float = 5.0) -> Outcome:
    async def once() -> Outcome:
        sender = Sender(Allowed.of(allowed), timeout_s, names)
        return await sender.send(url, HEADERS, b"{}")

    return asyncio.run(once())


@pytest.fixture
def listening() -> object:
    with receiver() as state:
        yield state


def test_a_name_that_leads_inside_is_not_connected_to(listening: Receiver) -> None:
    for answer in (["127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["fe80::1%lo"], ["0.0.0.0"]):
        outcome = send(f"https://evil.example:{listening.port}/", Names(answer))
        assert outcome.status is None
        assert "not public" in str(outcome.error)
        assert answer[0] not in str(outcome.error)  # what a name stands for inside is not told
    assert listening.got == []


def test_one_address_inside_among_others_refuses_all(listening: Receiver) -> None:
    names = Names(["93.184.215.14", "127.0.0.1"])
    assert "not public" in str(send(f"https://evil.example:{listening.port}/", names).error)
    assert listening.got == []


def test_a_name_is_looked_up_once_and_its_address_used(listening: Receiver) -> None:
    """Rebinding: a second look would lead elsewhere; there is none."""
    names = Names(["127.0.0.1"], ["203.0.113.1"])
    url = f"http://ci.internal:{listening.port}/hook?a=b"
    outcome = send(url, names, "ci.internal")
    assert (outcome.status, outcome.error) == (204, None)
    assert names.asked == [("ci.internal", listening.port)]
    [got] = listening.got
    assert got.headers["host"] == f"ci.internal:{listening.port}"
    assert got.path == "/hook?a=b"


def test_a_name_that_turns_inside_later_is_refused_then(listening: Receiver) -> None:
    """A network is allowed, not the name: each attempt judges where it leads now."""
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    port = listening.port

    async def twice() -> list[Outcome]:
        sender = Sender(Allowed.of(["127.0.0.0/8"]), 5.0, names)
        return [await sender.send(f"https://evil.example:{port}/", HEADERS, b"{}") for _ in "ab"]

    first, second = asyncio.run(twice())
    assert "not public" not in str(first.error)  # it was connected to, and speaks no TLS
    assert "not public" in str(second.error)


def test_http_is_only_for_who_is_named(listening: Receiver) -> None:
    outcome = send(f"http://evil.example:{listening.port}/", Names(["127.0.0.1"]), "127.0.0.0/8")
    assert "https" in str(outcome.error)
    assert listening.got == []


def test_what_is_stored_is_judged_anew(listening: Receiver) -> None:
    """A setting that allowed it may be gone."""
    outcome = send(listening.url, Names(["127.0.0.1"]))
    assert "not a public address" in str(outcome.error)
    assert send(listening.url, Names(["127.0.0.1"]), "127.0.0.1").is_good


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(listening: Receiver, code: int) -> None:
    listening.answers = [status(code, Location=f"{listening.url}/inside")]
    outcome = send(listening.url, Names(["127.0.0.1"]), "127.0.0.1")
    assert outcome.status == code
    assert "redirect" in str(outcome.error)
    assert len(listening.got) == 1


def test_a_proxy_of_the_environment_is_not_asked(
    listening: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert send(listening.url, Names(["127.0.0.1"]), "127.0.0.1").is_good
        assert proxy.got == []


def test_the_next_address_is_tried_when_one_is_dead(listening: Receiver) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))  # nobody listens on the receiver's port there
        names = Names(["127.0.0.2", "127.0.0.1"])
        outcome = send(f"http://ci.internal:{listening.port}/", names, "ci.internal")
    assert outcome.is_good


@pytest.mark.parametrize("answers", [[[]], [["not an address"]]])
def test_a_name_without_an_address(answers: list[list[str]]) -> None:
    assert "no address" in str(send("https://example.com/", Names(*answers)).error)


def test_a_resolver_that_hangs_ends_in_time() -> None:
    async def never(host: str, port: int) -> list[str]:
        del host, port
        await asyncio.sleep(60)
        return []

    async def once() -> Outcome:
        return await Sender(Allowed.of(()), 0.3, never).send("https://example.com/", HEADERS, b"{}")

    started = time.monotonic()
    outcome = asyncio.run(once())
    assert outcome.error == "no answer within 0.3 s"
    assert time.monotonic() - started < 5


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outcome = send(f"http://127.0.0.1:{port}/", Names(["127.0.0.1"]), "127.0.0.1")
    assert outcome.status is None
    assert "ConnectError" in str(outcome.error)


@pytest.mark.parametrize(
    "host", ["localhost", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1."]
)
def test_the_systems_resolver_is_judged_as_well(listening: Receiver, host: str) -> None:
    """Ways to write an address that are names to a parser, and none to a resolver."""

    async def once() -> Outcome:
        sender = Sender(Allowed.of(()), 5.0)
        return await sender.send(f"https://{host}:{listening.port}/", HEADERS, b"{}")

    outcome = asyncio.run(once())
    assert outcome.status is None
    # Never an error of the connection: there is none.
    assert str(outcome.error).startswith(("refused: ", "the name cannot be resolved"))
    assert listening.got == []


def test_what_another_service_says_is_not_passed_on() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-secret_banner\r\n")
                connection.shutdown(socket.SHUT_WR)
                # All of the request: a reset for what was not read could overtake the banner.
                while connection.recv(1000):
                    pass

        greeter = threading.Thread(target=greet, daemon=True)
        greeter.start()
        outcome = send(f"http://127.0.0.1:{port}/", Names(["127.0.0.1"]), "127.0.0.1")
        greeter.join(10)
    assert outcome.error == "what answered does not speak HTTP"


def test_an_address_of_ipv6_is_connected_to() -> None:
    with socket.socket(socket.AF_INET6) as server:
        try:
            server.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        server.listen()
        port = server.getsockname()[1]
        heads: list[bytes] = []

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                heads.append(connection.recv(4000))
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        outcome = send(f"http://[::1]:{port}/x", Names(["::1"]), "::1")
        thread.join(10)
    assert outcome.status == 204
    assert f"Host: [::1]:{port}".encode() in heads[0]


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """(certificate, key) for a host name, signed by itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def test_certificates_are_of_the_name_not_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes to an address, and TLS is checked against the name in the URL."""
    public, private = certificate(tmp_path, "ci.internal")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    asked: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked.append(name)
    with receiver(context) as listening:
        there = Names(["127.0.0.1"])
        url = f"https://ci.internal:{listening.port}/hook"
        distrusted = send(url, there, "ci.internal")
        assert "CERTIFICATE_VERIFY_FAILED" in str(distrusted.error)
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        assert send(url, there, "ci.internal").is_good
        assert asked[-1] == "ci.internal"
        other = send(f"https://else.internal:{listening.port}/", there, "else.internal")
        assert "CERTIFICATE_VERIFY_FAILED" in str(other.error)
        assert [got.headers["host"] for got in listening.got] == [f"ci.internal:{listening.port}"]
