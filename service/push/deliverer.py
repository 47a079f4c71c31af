"""The thread that delivers: leases what is due, sends it, notes what became of it.

Every worker has one.  A message is leased for longer than an attempt may take, so no two send it at
once; one whose sender dies is sent again when the lease has passed, with the same id.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from standardwebhooks.webhooks import Webhook

from service.addresses import Allowed
from service.log import get_logger
from service.push.backoff import pause_s
from service.push.sending import Outcome, Resolve, Sender, resolve
from service.sealing import SecretLost, unseal
from service.settings import Settings
from service.states import DeliveryState
from service.store.records import WebhookRecord
from service.store.repos import deliveries, webhooks
from service.store.repos.deliveries import PING, Due
from service.store.session import Database

SLOTS = 16
"""Attempts that one process makes at a time."""
EACH = 2
"""Attempts at one subscription at a time, by all processes."""
_MARGIN_S = 20.0
"""A lease outlasts the longest attempt by so much."""
_GRACE_S = 2.0
"""How long attempts may go on when the process stops."""
_SETTLES = 5
_STORING = 4
_LOOKUPS = 64
"""More than SLOTS: a look-up that was given up goes on until the system gives it up."""
AGENT = "Tilewright-Webhooks"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Order:
    """A leased message and where it goes."""

    due: Due
    webhook: WebhookRecord
    leased: float
    """By this process's monotonic clock, before the database was asked."""


def take(database: Database, settings: Settings, limit: int) -> list[Order]:
    """Lease up to so many messages that are due."""
    with database.read() as session:
        if not deliveries.has_due(session):
            return []
    leased = time.monotonic()
    with database.write() as session:
        found = deliveries.lease(
            session, ttl_s=settings.webhook_timeout_s + _MARGIN_S, limit=limit, each=EACH
        )
        hooks = {due.webhook_id: webhooks.get(session, due.webhook_id) for due in found}
    return [
        Order(due, hook, leased) for due in found if (hook := hooks[due.webhook_id]) is not None
    ]


def settle(database: Database, settings: Settings, due: Due, outcome: Outcome) -> None:
    """Note how an attempt ended and what follows."""
    with database.write() as session:
        failing_s = webhooks.heard(session, due.webhook_id, is_good=outcome.is_good)
        webhook = webhooks.get(session, due.webhook_id)
        deliveries.note_attempt(
            session, due, duration_s=outcome.duration_s, status=outcome.status, error=outcome.error
        )
        if webhook is None:
            return
        if outcome.is_good:
            deliveries.end(session, due, DeliveryState.DELIVERED)
            return
        pause = max(pause_s(due.id, due.tries, settings.webhook_backoff_s), outcome.retry_after_s)
        next_age_s = due.now - due.since + outcome.duration_s + pause
        is_last = (
            due.type == PING or outcome.is_gone or webhook.disabled is not None
            or next_age_s > settings.webhook_give_up_s
        )  # fmt: skip
        if not is_last:
            deliveries.put_off(session, due, pause)
            return
        deliveries.end(session, due, DeliveryState.GIVEN_UP)
        why = None
        if outcome.is_gone:
            why = "the receiver answered 410: it wants no more messages"
        elif due.type != PING and failing_s >= settings.webhook_disable_s:
            why = f"no message was taken for {failing_s / 3600:.0f} h; last: {outcome.error}"
        if why is not None and webhook.disabled is None:
            webhooks.disable(session, webhook.id, why)
            deliveries.give_up_all(session, webhook.id)
            get_logger().warning("webhook disabled", webhook=webhook.id, why=why)


def give_back(database: Database, due: Due, outcome: Outcome) -> None:
    """Leave a message to others: this process stops before the attempt has ended."""
    with database.write() as session:
        deliveries.note_attempt(
            session, due, duration_s=outcome.duration_s, status=None, error=outcome.error
        )
        deliveries.put_off(session, due, 0.0)


def signed(order: Order, settings: Settings) -> dict[str, str]:
    """The headers of a message that is sent now.

    Raises:
        SecretLost: settings have not the key that sealed its secret.
    """
    due, webhook = order.due, order.webhook
    moment = datetime.fromtimestamp(int(due.now), UTC)
    stored = (webhook.secret, webhook.former_secret)
    secrets = [unseal(text, settings.webhook_keys) for text in stored if text is not None]
    return {
        "webhook-id": due.id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(Webhook(s).sign(due.id, moment, due.body) for s in secrets),
        "Content-Type": "application/json",
        "User-Agent": AGENT,
        "Accept": "*/*",
    }


class Deliverer:
    """Delivers in a thread with an event loop of its own until stopped."""

    def __init__(
        self, database: Database, settings: Settings, *, resolve: Resolve = resolve
    ) -> None:
        self._database = database
        self._settings = settings
        self._resolve = resolve
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done = threading.Event()
        self._wake: asyncio.Event | None = None
        self._store: ThreadPoolExecutor | None = None
        self._thread = threading.Thread(target=self._main, name="deliverer", daemon=True)

    def start(self) -> None:
        """Start delivering."""
        self._thread.start()

    def stop(self) -> None:
        """End attempts within moments; what they had not delivered goes back."""
        self._done.set()
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            try:
                loop.call_soon_threadsafe(wake.set)
            except RuntimeError:  # it has ended on its own
                get_logger().debug("the deliverer had ended")
        if self._thread.ident is not None:
            self._thread.join()

    def _main(self) -> None:
        # The loop's own threads look names up.  A name server that hangs holds them for as long as
        # the system waits for it: nothing else may wait behind them, and nobody for their end.
        loop = asyncio.new_event_loop()
        loop.set_default_executor(ThreadPoolExecutor(_LOOKUPS, "deliverer-names"))
        try:
            with ThreadPoolExecutor(_STORING, "deliverer-store") as self._store:
                loop.run_until_complete(self._run())
        finally:
            loop.close()

    async def _stored(self, work: Callable[[], T]) -> T:
        """Run one transaction beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._store, work)

    async def _run(self) -> None:
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        sender: Sender | None = None  # reads certificates, which most processes never need
        open_: set[asyncio.Task[None]] = set()
        while not self._done.is_set():
            found: list[Order] = []
            if len(open_) < SLOTS:
                try:
                    room = SLOTS - len(open_)
                    found = await self._stored(partial(take, self._database, self._settings, room))
                except DBAPIError as error:
                    get_logger().warning("deliveries wait", error=str(error.orig))
            if found:
                sender = sender or Sender(
                    Allowed.of(self._settings.webhook_hosts), self._settings.webhook_timeout_s,
                    self._resolve,
                )  # fmt: skip
                open_ |= {asyncio.create_task(self._deliver(sender, order)) for order in found}
            ended = await self._pause(open_)
            open_ -= ended
        if open_:
            _, late = await asyncio.wait(open_, timeout=_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*open_, return_exceptions=True)

    async def _pause(self, open_: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Until it is time to look again, or an attempt has ended; those that have."""
        assert self._wake is not None
        wake = asyncio.create_task(self._wake.wait())
        await asyncio.wait(
            {wake, *open_}, timeout=self._settings.reconcile_period_s,
            return_when=asyncio.FIRST_COMPLETED,
        )  # fmt: skip
        wake.cancel()
        ended = {task for task in open_ if task.done()}
        for error in filter(None, (task.exception() for task in ended)):
            get_logger().error("delivery broke", exc_info=error)
        return ended

    async def _deliver(self, sender: Sender, order: Order) -> None:
        """One attempt, whatever happens in it."""
        started = time.monotonic()
        if started - order.leased > _MARGIN_S / 2:
            return  # the process stood still: somebody else may have it by the time it is sent
        try:
            headers = signed(order, self._settings)
        except SecretLost as error:
            outcome = Outcome(None, f"not signed: {error} (TILEWRIGHT_WEBHOOK_KEYS)", 0.0)
        else:
            try:
                outcome = await sender.send(order.webhook.url, headers, order.due.body.encode())
            except asyncio.CancelledError:
                stopped = Outcome(None, "the worker stopped", time.monotonic() - started)
                await self._stored(partial(give_back, self._database, order.due, stopped))
                return
        await self._settle(order.due, outcome)

    async def _settle(self, due: Due, outcome: Outcome) -> None:
        for attempt in range(_SETTLES):
            try:
                await self._stored(partial(settle, self._database, self._settings, due, outcome))
            except DBAPIError as error:
                get_logger().warning("delivery not noted", delivery=due.id, error=str(error.orig))
                await asyncio.sleep(min(2.0**attempt, _MARGIN_S / _SETTLES))
            else:
                get_logger().info(
                    "delivery", delivery=due.id, webhook=due.webhook_id, attempt=due.number,
                    status=outcome.status, error=outcome.error,
                    seconds=round(outcome.duration_s, 3),
                )  # fmt: skip
                return
