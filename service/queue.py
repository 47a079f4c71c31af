"""The Celery application: names, routes and settings, no tasks.

Messages are doorbells: they carry an item id, may be lost, doubled or reordered, and only wake a
worker that then asks the database what to do.  Hence early acknowledgement, no result backend, no
revoke, no ETA.  Tasks are sent by name, so senders never import worker code.
"""

from __future__ import annotations

from celery import Celery
from kombu.entity import Queue

from service.settings import Settings

RUN_ITEM = "tilewright.run_item"
_SOCKET_TIMEOUT_S = 10


def _transport_options(settings: Settings) -> dict[str, object]:
    if settings.embedded:
        # The default of one second per poll would dominate the latency of small jobs.
        return {"polling_interval": 0.02}
    if settings.broker_url.startswith("redis"):
        return {
            "socket_timeout": _SOCKET_TIMEOUT_S,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 15,
            # With early acknowledgement nothing long stays unacknowledged; restore what a killed
            # worker had fetched within seconds instead of minutes.
            "visibility_timeout": 60,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        }
    return {"confirm_publish": True, "connect_timeout": 5}


def create_app(settings: Settings) -> Celery:
    """Make the application for one process.

    Nothing connects before the first message.  Two applications may live in one process.
    """
    # A host name, though memory has none: kombu warns about its absence on every connection.
    broker = "memory://localhost//" if settings.embedded else settings.broker_url
    app = Celery("tilewright", set_as_current=False, broker=broker)
    app.conf.update(
        task_default_queue=settings.queue,
        # kombu's Queue has no types.
        task_queues=(Queue(settings.queue, durable=not settings.embedded),),  # type: ignore[no-untyped-call]
        task_create_missing_queues=False,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        result_backend=None,
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        # 0 = no limit: on the in-memory transport any other value costs the polling interval
        # per message.  A remote worker takes one message at a time, so that others get the rest.
        worker_prefetch_multiplier=0 if settings.embedded else 1,
        task_publish_retry=not settings.embedded,
        task_publish_retry_policy={
            "max_retries": 1,
            "interval_start": 0.1,
            "interval_max": 0.5,
        },
        broker_transport_options=_transport_options(settings),
        broker_connection_timeout=5,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # Brokers that no longer accept transient shared queues insist on exclusive ones.
        control_queue_exclusive=True,
        event_queue_exclusive=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        task_send_sent_event=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_state_db=None,
        enable_utc=True,
    )
    return app


def ring(app: Celery, item_id: str) -> None:
    """Send one doorbell.

    Raises:
        kombu.exceptions.OperationalError: the broker does not answer.
    """
    app.send_task(RUN_ITEM, args=[item_id], ignore_result=True)


def reach(app: Celery, within_s: float) -> None:
    """Connect to the broker and leave again.

    Raises:
        kombu.exceptions.OperationalError, OSError: it does not answer.
    """
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=within_s)
