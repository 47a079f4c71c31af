"""What keeps uploads fast: no delayed answers, early disk writes, one pass over the file."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from service.cli.serve import listen
from service.settings import Settings
from service.store.writeback import WINDOW_BYTES, EarlyWriteback


def test_accepted_connections_answer_without_delay(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, host="127.0.0.1", port=0)

    async def no_delay_of_one_connection() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted_socket = writer.get_extra_info("socket")
            seen.set_result(accepted_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen(settings) as listener:
            address = listener.getsockname()
            server = await asyncio.start_server(accepted, sock=listener)
            _, writer = await asyncio.open_connection(*address)
            result = await asyncio.wait_for(seen, 10)
            writer.close()
            server.close()
            return result

    assert asyncio.run(no_delay_of_one_connection()) == 1


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no posix_fadvise")
def test_writeback_covers_what_was_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advised: list[tuple[int, int]] = []

    def record(descriptor: int, start: int, length: int, advice: int) -> None:
        assert (descriptor, advice) == (7, os.POSIX_FADV_DONTNEED)
        advised.append((start, length))

    monkeypatch.setattr(os, "posix_fadvise", record)
    writeback = EarlyWriteback(7, start=100)
    for size in range(100, 100 + 5 * WINDOW_BYTES, WINDOW_BYTES // 3):
        writeback.reached(size)
    ends = [start + length for start, length in advised]
    assert [start for start, _ in advised] == [100, *ends[:-1]]
    assert all(WINDOW_BYTES <= length < 2 * WINDOW_BYTES for _, length in advised)
    assert ends[-1] > 100 + 3 * WINDOW_BYTES
