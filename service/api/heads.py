"""Connections that send no whole head end: uvicorn waits for one for ever."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class PacedProtocol(H11Protocol):
    """Closes a connection on which no whole head arrives within `head_s`.

    The wait starts when the connection opens, and again with the first byte after an answer;
    between the two uvicorn's own keep-alive limit holds.
    """

    head_s = 20.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn names its own kind of transport
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the start of the next head came with this request
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Time the wait for a head while no request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._late is None:
            self._expect()

    def _expect(self) -> None:
        self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
