"""The example of Kubernetes manifests fits the image, the settings and the edge of the API."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "examples" / "kubernetes" / "tilewright.yaml").read_text()
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))
PODS = {
    document["metadata"]["name"]: document["spec"]["template"]["spec"]
    for document in DOCUMENTS
    if document["kind"] == "Deployment"
}
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_every_variable_is_a_setting() -> None:
    """Those of the manifests, and those that the secret is made of."""
    known = {f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields}
    used = set(re.findall(r"TILEWRIGHT_\w+", TEXT))
    assert used >= {"TILEWRIGHT_DATABASE_URL", "TILEWRIGHT_BROKER_URL", "TILEWRIGHT_BLOB_URL"}
    assert used <= known


def test_values_are_good_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for pod in PODS.values():
        for variable in pod["containers"][0]["env"]:
            monkeypatch.setenv(variable["name"], variable["value"])
    settings = Settings()
    assert settings.allowed_hosts == ("tilewright",)
    assert settings.keep_jobs_s > 0


def test_pods_are_the_image_without_rights() -> None:
    user = re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert user
    assert set(PODS) == {"tilewright-api", "tilewright-worker"}
    assert {pod["containers"][0]["args"][0] for pod in PODS.values()} == {"serve", "worker"}
    for pod in PODS.values():
        assert pod["securityContext"]["runAsUser"] == int(user[1])
        assert pod["securityContext"]["runAsNonRoot"] is True
        [container] = pod["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted == {"/tmp", "/var/lib/tilewright"}


def test_probes_come_by_a_name_of_the_server() -> None:
    """By the pod's address they would be 403: the edge of the API asks for a name it knows."""
    [container] = PODS["tilewright-api"]["containers"]
    probes = [container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    port = re.search(r"TILEWRIGHT_PORT=(\d+)", DOCKERFILE)
    assert port
    assert [p["containerPort"] for p in container["ports"]] == [int(port[1])]
    for probe in probes:
        assert probe["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
        assert probe["httpGet"]["path"] == "/healthz"  # open without a key


def test_selectors_find_their_pods() -> None:
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for document in DOCUMENTS
        if document["kind"] == "Deployment"
    ]
    for document in DOCUMENTS:
        wanted = document["spec"]["selector"]
        wanted = wanted.get("matchLabels", wanted)
        found = [row for row in labels if wanted.items() <= row.items()]
        assert len(found) == 1, document["metadata"]["name"]


@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="kubernetes-validate is not installed (the extra test-manifests)",
)
def test_the_api_of_kubernetes_takes_them() -> None:
    validator = importlib.import_module("kubernetes_validate")
    for document in DOCUMENTS:
        validator.validate(document, validator.latest_version(), strict=True)
