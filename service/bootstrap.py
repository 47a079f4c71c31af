"""Wire one process: settings in, the handful of long-lived things everything else needs out."""

from __future__ import annotations

from dataclasses import dataclass

from celery import Celery

from service.outbox import Outbox
from service.queue import create_app
from service.settings import Settings
from service.store.blobs import BlobStore
from service.store.open_blobs import open_blob_store
from service.store.session import Database
from service.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Services:
    """What a process of the service works with.  `celery` has no tasks: messages go by name."""

    settings: Settings
    database: Database
    blobs: BlobStore
    celery: Celery
    outbox: Outbox
    tracing: Tracing

    def close(self) -> None:
        """Give back connections, and send what is left of spans."""
        self.tracing.close()
        self.database.close()
        self.celery.close()


def open_services(settings: Settings) -> Services:
    """Open everything; connects to nothing yet and does not touch the schema.

    Raises:
        Unavailable: the blob store cannot be opened.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.database_url)
    app = create_app(settings)
    return Services(
        settings=settings,
        database=database,
        blobs=open_blob_store(settings),
        celery=app,
        outbox=Outbox(database, app, redispatch_s=settings.redispatch_s),
        tracing=Tracing(settings),
    )
