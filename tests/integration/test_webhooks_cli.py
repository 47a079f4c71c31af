"""`tilewright webhooks`, and the page that shows it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from api_fixtures import Serve, Served
from document_commands import commands
from standardwebhooks.webhooks import Webhook
from typer.testing import CliRunner
from webhook_receiver import receiver, status

from service.cli.main import app
from service.settings import Settings
from service.states import EventType

PAGE = Path(__file__, "../../../docs/push.md").resolve().read_text()
LINES = [command.line for command in commands(PAGE)]


def run(served: Served, *words: str, code: int = 0) -> str:
    ran = CliRunner().invoke(app, ["webhooks", *words, "--server", served.url])
    assert ran.exit_code == code, ran.output
    return ran.stdout


def test_the_pages_commands_run_in_order(serve: Serve) -> None:
    with receiver() as listening:
        served = serve(webhook_hosts=("127.0.0.1",))
        start = "tilewright webhooks "
        ours = [line.removeprefix(start) for line in LINES if line.startswith(start)]
        assert len(ours) == 10
        verbs = {command.split()[0] for command in ours}
        assert verbs == {
            "create", "ls", "show", "ping", "deliveries", "replay", "rotate", "enable", "rm",
        }  # fmt: skip
        known = {"https://ci.example.com/hooks/tilewright": listening.url}
        secret = ""
        for command in ours:
            shown = run(served, *(known.get(word, word) for word in shlex.split(command)))
            if command.startswith("create"):
                secret = shown.strip()
                [hook] = served.client.webhooks()
                assert hook["events"] == ["job.succeeded", "job.failed"]
                known["ID"] = str(hook["id"])
            if command.startswith(("ls", "show")):
                assert listening.url in shown
                assert secret not in shown
            if command.startswith("ping"):
                assert "204" in shown
                [message] = list(served.client.deliveries(known["ID"]))
                known["DELIVERY"] = str(message["id"])
            if command == "deliveries ID":
                assert known["DELIVERY"] in shown
            if command.startswith("replay"):
                got = listening.wait(2)
                assert got[0].id == got[1].id == known["DELIVERY"]
            if command.startswith("rotate"):
                assert shown.startswith("whsec_")
                assert shown.strip() != secret
        assert served.client.webhooks() == []
        Webhook(secret).verify(listening.got[0].body, listening.got[0].headers)


def test_the_pages_requests_are_answered(serve: Serve) -> None:
    served = serve()
    job = served.submit()["id"]
    served.ended(job)
    asked = [line for line in LINES if line.startswith("curl ")]
    assert len(asked) + 11 == len(LINES)
    for line in asked:
        words = shlex.split(line.replace("http://127.0.0.1:8080", served.url).replace("JOB", job))
        done = subprocess.run([*words, "-sS"], capture_output=True, text=True, check=True)
        assert "succeeded" in done.stdout, line


def test_a_ping_says_what_the_receiver_answered(serve: Serve) -> None:
    with receiver() as listening:
        served = serve(webhook_hosts=("127.0.0.1",))
        listening.answers = [status(503)]
        made = json.loads(run(served, "create", listening.url, "--json"))
        assert set(made["events"]) == set(EventType)
        shown = run(served, "ping", made["id"], code=5)
        assert "503" in shown
        assert "answered 503" in shown
    refused = json.loads(run(served, "ping", made["id"], "--json", code=5))
    assert "ConnectError" in refused["log"][0]["error"]


def test_without_a_worker_a_ping_waits(serve: Serve) -> None:
    served = serve(worker=False)
    made = json.loads(run(served, "create", "https://example.com/", "--json"))
    assert json.loads(run(served, "ping", made["id"], "--wait", "0", "--json", code=6))["log"] == []
    page: dict[str, Any] = json.loads(
        run(served, "deliveries", made["id"], "--state", "pending", "--json")
    )
    assert len(page["items"]) == 1
    assert run(served, "deliveries", made["id"], "--state", "delivered").count("\n") == 1


def test_a_disabled_one_says_so(serve: Serve) -> None:
    with receiver() as listening:
        served = serve(webhook_hosts=("127.0.0.1",))
        listening.answers = [status(410)]
        made = json.loads(run(served, "create", listening.url, "--json"))
        run(served, "ping", made["id"], code=5)
        assert "disabled" in run(served, "ls")
        assert "410" in run(served, "show", made["id"])
        run(served, "enable", made["id"])
        assert "live" in run(served, "ls")


def test_bad_urls_are_refused_with_what_to_do(serve: Serve) -> None:
    ran = CliRunner().invoke(
        app,
        ["webhooks", "create", "http://10.0.0.1/", "--server", serve(worker=False).url],
    )
    assert ran.exit_code == 2
    assert "TILEWRIGHT_WEBHOOK_HOSTS" in ran.output


def test_the_page_has_every_event_and_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.findall(r"^\| `((?:job|sweep)\.\w+)` \|", PAGE, re.MULTILINE) == list(EventType)
    rows = dict(re.findall(r"^\| `TILEWRIGHT_(\w+)` \| (\S+) \|", PAGE, re.MULTILINE))
    ours = {name for name in Settings.model_fields if name.startswith("webhook_")}
    assert {name.lower() for name in rows} == ours | {"keep_deliveries_s"}
    for name, value in rows.items():
        monkeypatch.setenv(f"TILEWRIGHT_{name}", value.strip("`"))
    assert Settings().webhook_timeout_s == 20.0
    for name in rows:
        monkeypatch.delenv(f"TILEWRIGHT_{name}")
        field = Settings.model_fields[name.lower()]
        shown = json.loads(rows[name].strip("`"))
        assert shown == (list(field.default) if isinstance(field.default, tuple) else field.default)
    allowed = re.findall(r"^TILEWRIGHT_WEBHOOK_HOSTS='(.*)'$", PAGE, re.MULTILINE)
    monkeypatch.setenv("TILEWRIGHT_WEBHOOK_HOSTS", allowed[0])
    assert Settings().webhook_hosts == ("ci.internal", "10.2.0.0/16", "127.0.0.1")
    [maker] = [shlex.split(line)[2] for line in LINES if line.startswith("python -c ")]
    printed: list[str] = []
    exec(maker, {"print": printed.append})
    Settings(webhook_keys=(printed[0],))


def test_encrypted_secrets_sign(serve: Serve) -> None:
    """A key that is taken away fails attempts by name; put back, the message goes out."""
    from cryptography.fernet import Fernet

    key = Fernet.generate_key().decode()
    with receiver() as listening:
        given: dict[str, Any] = {
            "webhook_hosts": ("127.0.0.1",), "webhook_keys": (key,), "webhook_backoff_s": 0.2,
        }  # fmt: skip
        served = serve(worker=False, **given)
        made = served.client.create_webhook(listening.url)
        served.client.cancel(served.submit()["id"])
        [message] = list(served.client.deliveries(str(made["id"])))
        from service.push.deliverer import Deliverer

        lost = Deliverer(
            served.services.database, served.settings.model_copy(update={"webhook_keys": ()})
        )
        lost.start()
        deadline = time.monotonic() + 20
        while (
            not (log := served.client.delivery(str(made["id"]), str(message["id"]))["log"])
            or not log[0]["error"]
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        lost.stop()
        assert "TILEWRIGHT_WEBHOOK_KEYS" in log[0]["error"]
        assert listening.got == []
        found = Deliverer(served.services.database, served.settings)
        found.start()
        [got] = listening.wait(1)
        found.stop()
        Webhook(str(made["secret"])).verify(got.body, got.headers)
