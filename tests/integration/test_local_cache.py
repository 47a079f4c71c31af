"""The cache of a local compile: entries and counts are the store's, without SQLAlchemy for hits."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from service.settings import Settings
from service.store.glance import CacheGlance
from service.store.local_blobs import LocalBlobStore
from service.store.repos import cache as entries
from service.store.session import Database, migrate
from worker.compiler.cache import CacheKey, CacheKind
from worker.runner.local_cache import LocalCache
from worker.runner.store_cache import StoreCache


def key(name: str) -> CacheKey:
    return CacheKey(CacheKind.SCHEDULE, (("signature", name),))


class Store:
    """A data directory's store; counts how often it had to be opened."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'tilewright.db'}"
        migrate(self.url)
        self.database = Database(self.url)
        self.blobs = LocalBlobStore(folder / "blobs", folder / "blobs" / "spool")
        self.opened = 0

    def whole(self) -> StoreCache:
        self.opened += 1
        return StoreCache(self.database, self.blobs, job_id=None, inline_bytes=100)

    def local(self, url: str = "") -> LocalCache:
        return LocalCache(CacheGlance(url or self.url), self.blobs, self.whole)

    def hits(self, name: str) -> int:
        with self.database.read() as session:
            found = entries.get(session, key(name).digest)
        assert found is not None
        return found.hits


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "blobs" / "spool").mkdir(parents=True)
    made = Store(tmp_path)
    filled = made.whole()
    filled.put(key("small"), b"s" * 100)
    filled.put(key("large"), b"l" * 101)
    made.opened = 0
    return made


def test_hits_and_misses_open_no_store_and_are_counted(store: Store) -> None:
    cache = store.local()
    assert [cache.get(key(name)) for name in ("small", "large", "none", "large")] == [
        b"s" * 100, b"l" * 101, None, b"l" * 101,
    ]  # fmt: skip
    cache.flush_hits()
    cache.flush_hits()
    assert store.opened == 0
    assert (store.hits("small"), store.hits("large")) == (1, 2)
    with store.database.read() as session:
        entry = entries.get(session, key("small").digest)
    assert entry is not None and 0 <= entry.last_used - entry.created < 60


def test_what_is_stored_is_found(store: Store) -> None:
    cache = store.local()
    assert cache.get(key("new")) is None
    cache.put(key("new"), b"value")
    cache.put(key("new"), b"other")
    assert cache.get(key("new")) == b"value"
    assert store.opened == 1


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_a_lost_value_is_a_miss_and_is_filled_again(store: Store, fault: str) -> None:
    path = store.blobs.path(sha256(b"l" * 101).hexdigest())
    if fault == "missing":
        path.unlink()
    else:
        path.chmod(0o644)
        path.write_bytes(b"x" * 101)
    cache = store.local()
    assert cache.get(key("large")) is None
    cache.put(key("large"), b"l" * 101)
    assert cache.get(key("large")) == b"l" * 101


def test_a_store_of_another_kind_is_asked_itself(store: Store) -> None:
    cache = store.local("postgresql+psycopg://u@h/d")
    assert cache.get(key("small")) == b"s" * 100
    assert cache.get(key("none")) is None
    cache.flush_hits()
    assert (store.opened, store.hits("small")) == (1, 1)


def test_a_store_that_goes_away_is_asked_itself(store: Store) -> None:
    glance = CacheGlance(store.url)
    cache = LocalCache(glance, store.blobs, store.whole)
    assert cache.get(key("small")) == b"s" * 100
    glance.close()
    assert cache.get(key("small")) == b"s" * 100
    cache.flush_hits()
    assert store.hits("small") == 2


COMPILE = """
import sys
from service.cli.main import app
try:
    app(["compile", sys.argv[1], "--hardware", "a100", "--strategy", "naive",
         "--verify", "none", "-o", sys.argv[2]])
except SystemExit as end:
    assert not end.code, end.code
print(sorted(name for name in ("sqlalchemy", "structlog", "alembic") if name in sys.modules))
"""


def test_a_warm_compile_needs_neither_sqlalchemy_nor_structlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    assert Settings().data_dir == tmp_path / "data"
    model = Path(__file__).parents[2] / "service" / "cli" / "example" / "tiny_cnn.onnx"
    said = [
        subprocess.run(
            [sys.executable, "-P", "-c", COMPILE, str(model), str(tmp_path / "out")],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()[-1]
        for _ in range(2)
    ]  # fmt: skip
    assert "sqlalchemy" in said[0]
    assert said[1] == "[]"
