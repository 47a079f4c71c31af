"""What breaks when: faults chosen at random by a seed, one after the other on each of two threads.

A fault has a victim, and a victim has one fault at a time.  Which faults come in which order
follows from the seed; when they strike and what they meet there is up to the clock.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from random import Random

from benchmarks.faults.disk import Disk
from benchmarks.faults.proxy import Mood
from benchmarks.faults.servers import OwnPostgres, Server
from benchmarks.faults.site import LEASE_S, Child, Site

_AT_ONCE = 2
_AT_FIRST = 6
_PER_JOB = 0.25
"""So many faults strike before the first job has ended, and so many more for each that has: on a
slow machine as on a fast one, work gets done between them."""
_PAUSE_S = 4.0
_PATIENCE_S = 60.0
"""For the only write lock, which somebody may hold who hangs."""
_LONGEST_S = 2 * LEASE_S
"""Longer than a lease, so that some of what hangs comes back to find that it has lost."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks, for a while."""

    name: str
    victim: str
    strike: Callable[[float, Random], None]
    """Break it for so many seconds, and mend it."""


class Chaos:
    """Breaks a site until its block ends."""

    def __init__(self, site: Site, seed: int) -> None:
        self.struck: Counter[str] = Counter()
        self.spans: list[tuple[float, float]] = []
        """From when until when each fault was there, by the clock that databases have."""
        self.broken: list[str] = []
        """Faults that could not be done or undone: of the campaign, not of the site."""
        self._site = site
        self._faults = faults_of(site)
        self.ended = 0
        """Jobs that have ended, as far as whoever watches them knows."""
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(Random(f"{seed}.{n}"),), daemon=True)
            for n in range(_AT_ONCE)
        ]

    def __enter__(self) -> Chaos:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _run(self, random: Random) -> None:
        while not self._done.wait(random.uniform(0.0, _PAUSE_S)):
            if self.struck.total() >= _AT_FIRST + _PER_JOB * self.ended:
                continue
            fault = random.choice(self._faults)
            lasts_s = random.uniform(0.2, _LONGEST_S)
            with self._alone_with(fault.victim) as is_free:
                if not is_free:
                    continue
                began = time.time()
                try:
                    fault.strike(lasts_s, random)
                except (OSError, sqlite3.Error, RuntimeError) as error:
                    self.broken.append(f"{fault.name}: {error}")
                    continue
                self.struck[fault.name] += 1
                self.spans.append((began, time.time()))

    @contextmanager
    def _alone_with(self, victim: str) -> Iterator[bool]:
        with self._lock:
            is_free = victim not in self._busy
            self._busy.add(victim)
        try:
            yield is_free
        finally:
            if is_free:
                with self._lock:
                    self._busy.discard(victim)


def faults_of(site: Site) -> list[Fault]:
    """All that may happen to a deployment."""
    found = [fault for child in site.children for fault in _of_child(child)]
    found += [
        Fault("payload killed", "payload", lambda _, random: _kill_payload(site, random)),
        Fault("payload hung", "payload", lambda s, random: _hang_payload(site, s, random)),
    ]
    if site.disk.is_mounted or site.disk.is_injected:
        found.append(_full("disk full", site.disk))
    for server in site.servers:
        if server.name != "store":
            found += _of_server(site, server)
    if site.cluster_disk is not None and site.cluster_disk.is_mounted:
        found.append(_full("database's disk full", site.cluster_disk))
    if site.database is None:
        found.append(Fault("database locked", "database", lambda s, _: _lock_sqlite(site, s)))
    proxy = site.proxy
    if proxy is not None:

        def behave(mood: Mood, seconds: float) -> None:
            proxy.mood = mood
            time.sleep(seconds)
            proxy.mood = Mood.PASS

        for mood in Mood:
            if mood is not Mood.PASS:
                strike = lambda s, _, mood=mood: behave(mood, s)  # noqa: E731
                found.append(Fault(f"store: {mood}", "store", strike))
    return found


def _of_child(child: Child) -> Iterator[Fault]:
    kind = child.name.split(maxsplit=1)[0]

    def hang(seconds: float, _: Random) -> None:
        child.signal(signal.SIGSTOP)
        time.sleep(seconds)
        child.signal(signal.SIGCONT)

    yield Fault(f"{kind} killed", child.name, lambda s, _: child.end(signal.SIGKILL, s / 4))
    yield Fault(f"{kind} asked to end", child.name, lambda s, _: child.end(signal.SIGTERM, s / 4))
    yield Fault(f"{kind} hung", child.name, hang)


def _of_server(site: Site, server: Server) -> Iterator[Fault]:
    def crash(seconds: float, _: Random) -> None:
        site.resting.add(server)
        server.stop(signal.SIGQUIT if isinstance(server, OwnPostgres) else signal.SIGKILL)
        time.sleep(seconds / 2)
        site.resting.discard(server)

    def hang(seconds: float, _: Random) -> None:
        server.freeze()
        time.sleep(seconds)
        server.thaw()

    yield Fault(f"{server.name} killed", server.name, crash)
    yield Fault(f"{server.name} hung", server.name, hang)


def _full(name: str, disk: Disk) -> Fault:
    def fill(seconds: float, _: Random) -> None:
        try:
            disk.fill()
            time.sleep(seconds)
        finally:
            disk.empty()

    return Fault(name, name, fill)


def _kill_payload(site: Site, random: Random) -> None:
    found = site.payloads()
    if found:
        _send(random.choice(found), signal.SIGKILL)


def _hang_payload(site: Site, seconds: float, random: Random) -> None:
    found = site.payloads()
    if found:
        victim = random.choice(found)
        _send(victim, signal.SIGSTOP)
        time.sleep(seconds)
        _send(victim, signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended by itself


def _lock_sqlite(site: Site, seconds: float) -> None:
    """Hold the only write lock, as a process would that was stopped in mid-transaction."""
    path = site.data_dir / "tilewright.db"
    with closing(sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        held.execute("ROLLBACK")
