"""Settings: embedded defaults, environment, and what is derived from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.errors import NotFound, TooLarge
from service.settings import Settings


def test_defaults_are_embedded(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.embedded
    assert settings.database_url == f"sqlite:///{tmp_path}/tilewright.db"
    assert settings.blob_url == f"file://{tmp_path}/blobs"
    assert settings.reconcile_period_s == 1.0


def test_environment_wins_over_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", "postgresql://u@db/tw")
    monkeypatch.setenv("TILEWRIGHT_BROKER_URL", "redis://broker/0")
    monkeypatch.setenv("TILEWRIGHT_WORKERS", "7")
    settings = Settings()
    assert settings.database_url == "postgresql+psycopg://u@db/tw"
    assert not settings.embedded
    assert settings.workers == 7
    assert settings.reconcile_period_s == 5.0
    assert settings.queue == "tilewright"


def test_embedded_queues_of_two_directories_differ(tmp_path: Path) -> None:
    one, two = Settings(data_dir=tmp_path / "a"), Settings(data_dir=tmp_path / "b")
    assert one.queue != two.queue


def test_bad_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="workers"):
        Settings(data_dir=tmp_path, workers=0)


def test_errors_carry_status_and_problem() -> None:
    error = TooLarge("the body is too large", limit=10, actual=11)
    document = error.to_problem()
    assert (error.status, document["code"]) == (413, "TW-SVC-003")
    assert (document["limit"], document["actual"]) == (10, 11)
    assert document["remedy"]
    assert NotFound("no such job").status == 404
