"""Group commit: threads that write at the same time share one transaction.

Whoever gets the lock first commits for all who wait at that moment; the others find their work
done.  Without contention a piece of work pays two locks and nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

T = TypeVar("T")
MAX_TOGETHER = 64
"""Pieces of work per transaction: bounds how long the first of them waits for its commit."""

OpenTransaction = Callable[[], AbstractContextManager[Session]]


class _Piece(Generic[T]):
    """One thread's work and what became of it."""

    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[Session], T]) -> None:
        self.work = work
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None


class GroupCommit:
    """Collects the concurrent writes of one process.  Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[_Piece[Any]] = deque()
        self._leader = threading.Lock()

    @property
    def waiting(self) -> int:
        """Pieces of work that no transaction has taken yet."""
        return len(self._waiting)

    def run(self, work: Callable[[Session], T], open_transaction: OpenTransaction) -> T:
        """Run `work` with others' in one transaction; return or raise once that is committed."""
        piece = _Piece(work)
        self._waiting.append(piece)
        with self._leader:
            # A leader takes at most MAX_TOGETHER, so a late piece may need a second round.
            while not piece.done:
                self._commit(self._take(), open_transaction)
        if piece.error is not None:
            raise piece.error
        return cast("T", piece.result)

    def _take(self) -> list[_Piece[Any]]:
        return [self._waiting.popleft() for _ in range(min(self.waiting, MAX_TOGETHER))]

    def _commit(self, pieces: list[_Piece[Any]], open_transaction: OpenTransaction) -> None:
        try:
            with open_transaction() as session:
                if len(pieces) == 1:
                    # Alone: a failure rolls the whole transaction back, no savepoint needed.
                    pieces[0].result = pieces[0].work(session)
                else:
                    for piece in pieces:
                        _attempt(piece, session)
        except BaseException as error:
            # Nothing was committed: nobody may believe it was.
            for piece in pieces:
                piece.error = piece.error or error
        finally:
            for piece in pieces:
                piece.done = True


def _attempt(piece: _Piece[Any], session: Session) -> None:
    """A broken database fails all pieces; any other error, such as a refusal, a broken constraint
    or an answer that cannot be built, concerns its own."""
    try:
        with session.begin_nested():
            piece.result = piece.work(session)
    except IntegrityError as error:
        piece.error = error
    except SQLAlchemyError:
        raise
    except Exception as error:  # handed to the thread whose work it is
        piece.error = error
