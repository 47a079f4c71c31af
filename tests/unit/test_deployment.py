"""Dockerfile and docker-compose.yml agree with the settings, the CLI and each other."""

from __future__ import annotations

import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from service.cli.main import app as cli
from service.hosts import is_loopback
from service.settings import Settings

REPO = Path(__file__).resolve().parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((REPO / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("api", "worker")
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """Give the Dockerfile as (instruction, arguments), continuation lines joined."""
    text = (REPO / "Dockerfile").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def arguments(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def image_environment() -> dict[str, str]:
    pairs = " ".join(arguments("ENV")).split()
    return dict(pair.split("=", 1) for pair in pairs)


def expanded(values: dict[str, str]) -> dict[str, str]:
    """Resolve `${NAME:-default}` and `${NAME:?why}` as Compose does; an .env has the latter."""

    def value(found: re.Match[str]) -> str:
        return found[3] if found[2] == "-" else f"own{found[1]}"

    return {k: re.sub(r"\$\{(\w+):([-?])([^}]*)\}", value, str(v)) for k, v in values.items()}


def test_no_secret_has_a_default() -> None:
    asked = set()
    for service in SERVICES.values():
        for name, value in (service.get("environment") or {}).items():
            if "PASSWORD" in name or "SECRET" in name or "PASSWORD" in str(value):
                found = re.findall(r"\$\{(\w+)(:[-?])", str(value))
                assert [kind for _, kind in found] == [":?"], (name, value)
                asked |= {variable for variable, _ in found}
    assert asked == {"POSTGRES_PASSWORD", "S3_SECRET_KEY"}


def settings_of(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment.items():
        if name.startswith("TILEWRIGHT_"):
            monkeypatch.setenv(name, value)
    return Settings()


def test_every_variable_is_a_setting() -> None:
    known = {f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields}
    used = set(image_environment())
    for name in OURS:
        used |= set(SERVICES[name]["environment"])
    ours = {name for name in used if name.startswith("TILEWRIGHT_")}
    assert ours >= {"TILEWRIGHT_DATABASE_URL", "TILEWRIGHT_BROKER_URL", "TILEWRIGHT_BLOB_URL"}
    assert ours <= known


def test_image_alone_is_the_embedded_service(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(image_environment(), monkeypatch)
    assert settings.embedded
    assert settings.database_url.startswith("sqlite:///")
    assert str(settings.data_dir) in arguments("VOLUME")
    assert str(settings.port) in arguments("EXPOSE")
    assert f":{settings.port}/healthz" in arguments("HEALTHCHECK")[0]


@pytest.mark.parametrize("name", OURS)
def test_composed_services_are_scaled_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = image_environment() | expanded(SERVICES[name]["environment"])
    settings = settings_of(environment, monkeypatch)
    assert not settings.embedded
    assert settings.database_url.startswith("postgresql+psycopg://")
    assert settings.blob_url.startswith("s3://")
    hosts = [
        re.search(r"[/@]([a-z]+):\d+", url)
        for url in (settings.database_url, settings.broker_url, settings.s3_endpoint or "")
    ]
    assert [match.group(1) for match in hosts if match] == ["postgres", "redis", "objects"]
    assert {"postgres", "redis", "bucket"} <= set(SERVICES[name]["depends_on"])
    assert str(settings.data_dir) in SERVICES[name]["volumes"][0]


@pytest.mark.parametrize("words", [SERVICES[name]["command"] for name in OURS] + [["serve"]])
def test_commands_exist(words: list[str]) -> None:
    group: Any = typer.main.get_command(cli)
    verb = group.commands[words[0]]
    options = {option for parameter in verb.params for option in parameter.opts}
    assert {word for word in words[1:] if word.startswith("-")} <= options


def test_both_commands_run_the_one_image_as_nobody_special() -> None:
    assert json.loads(arguments("ENTRYPOINT")[0]) == ["tilewright"]
    assert "tilewright" in PROJECT["scripts"]
    assert json.loads(arguments("CMD")[0]) == ["serve"]
    user = arguments("USER")
    assert len(user) == 1
    assert int(user[0]) > 0
    assert [word for word, _ in instructions()].index("USER") < [
        word for word, _ in instructions()
    ].index("ENTRYPOINT")
    for name in OURS:
        service = SERVICES[name]
        assert service["image"] == SERVICES["api"]["image"]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not {"privileged", "user"} & set(service)


def test_published_port_is_the_api_on_loopback() -> None:
    port = image_environment()["TILEWRIGHT_PORT"]
    assert SERVICES["api"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["api"]


def test_open_servers_ask_for_keys_and_know_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    image = settings_of(image_environment(), monkeypatch)
    assert not is_loopback(image.host)
    assert image.needs_key
    environment = image_environment() | expanded(SERVICES["api"]["environment"])
    assert settings_of(environment, monkeypatch).allowed_hosts == ("api",)
    assert "api" in SERVICES


def test_object_store_is_maintained_and_its_port_is_the_one_we_use() -> None:
    images = {service["image"] for service in SERVICES.values()}
    assert not [image for image in images if "minio" in image]
    assert all(":" in image or image == "tilewright" for image in images)
    command = SERVICES["objects"]["command"]
    endpoint = SERVICES["api"]["environment"]["TILEWRIGHT_S3_ENDPOINT"]
    assert f"-s3.port={endpoint.rsplit(':', 1)[1]}" in command
    bucket = SERVICES["api"]["environment"]["TILEWRIGHT_BLOB_URL"].split("/")[2]
    assert f"-name {bucket}" in SERVICES["bucket"]["command"][0]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert SERVICES["objects"]["environment"][name] == SERVICES["api"]["environment"][name]


def test_database_credentials_match() -> None:
    database = expanded(SERVICES["postgres"]["environment"])
    url = expanded(SERVICES["api"]["environment"])["TILEWRIGHT_DATABASE_URL"]
    user, password = database["POSTGRES_USER"], database["POSTGRES_PASSWORD"]
    assert url == f"postgresql://{user}:{password}@postgres:5432/{database['POSTGRES_DB']}"


def test_volumes_are_declared() -> None:
    used = {v.split(":")[0] for service in SERVICES.values() for v in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = [
        line.strip()
        for line in (REPO / ".dockerignore").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    sources = [
        word for rest in arguments("COPY") if "--from" not in rest for word in rest.split()[:-1]
    ]
    assert {"pyproject.toml", "tilewright", "service", "worker", "migrations"} <= set(sources)
    for source in sources:
        assert (REPO / source).exists()
        excluded = False
        for pattern in ignored:
            if fnmatch(source, pattern.removeprefix("!")):
                excluded = not pattern.startswith("!")
        assert not excluded, source


def test_base_image_satisfies_the_project() -> None:
    versions = {
        tuple(map(int, match.groups()))
        for rest in arguments("FROM")
        if (match := re.match(r"python:(\d+)\.(\d+)-slim", rest))
    }
    floor = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    assert len(versions) == 1
    # 3.12 also has the zipfile fix for overlapping entries.
    assert min(versions) >= max(floor, (3, 12))
    assert "s3" in PROJECT["optional-dependencies"]
