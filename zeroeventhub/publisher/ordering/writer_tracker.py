"""What the ordering observed decides by knowing who writes.

A round is a number that had been drawn, with the writers that were open when it was read. Once all
of those have ended, everything up to the number is decided, whichever writers have come since.
"""

from dataclasses import dataclass
from itertools import count
from threading import Lock

from sqlalchemy import Connection, TextClause

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering.port import Horizon

__all__ = ["PREPARED", "WriterTracker", "server_name"]

PREPARED = "-1/"
"""How the name of a prepared transaction begins, where its writer was known by another."""


@dataclass
class _Round:
    """A number that had been drawn, and the moment by which its writers had been read."""

    number: int
    read_by: int


class WriterTracker:
    """Decide rounds by the writers that are still open; without I/O of its own.

    Readers observe side by side: each begins a reading, reads the last number drawn and then the
    open writers, in this order, and hands over what it read.
    """

    def __init__(self) -> None:
        self._ticks = count(1)
        self._lock = Lock()
        self._server: str | None = None
        self._server_since = 0
        self._settled: _Round | None = None
        self._open: dict[frozenset[str], _Round] = {}

    def begin(self, server: str) -> int:
        """Begin a reading; return the moment.

        Args:
            server: the running server that is read, by a name that no other has. What is known of
                numbers is forgotten with it: another may draw them again, after a failover.
        """
        with self._lock:
            if server != self._server:
                self._server, self._server_since = server, next(self._ticks)
                self._forget()
            return next(self._ticks)

    def decided(self, began: int, number: int) -> Horizon | None:
        """Return the horizon where it needs no look at who writes: nothing has been drawn since.

        Args:
            began: the moment at which the reading began.
            number: the last number drawn.

        Returns:
            It, if an earlier round has decided the number; else None.
        """
        with self._lock:
            settled = self._settled
            if settled is None or settled.number != number or began < self._server_since:
                return None
            if any(round_.number > number for round_ in self._open.values()):
                return None  # the sequence was set back
        return Horizon(settled=number, highest=number)

    def horizon(self, began: int, number: int, writers: frozenset[str]) -> Horizon:
        """Return the horizon by a new reading; see `observe`.

        Raises:
            Unavailable: no round has been decided yet.
        """
        settled = self.observe(began, number, writers)
        if settled is None:
            raise Unavailable(
                "The feed has just started and waits for open transactions to end before it "
                "knows how far it may be read.",
                retry_after=1,
            )
        return Horizon(settled=settled, highest=max(number, settled))

    def observe(self, began: int, number: int, writers: frozenset[str]) -> int | None:
        """Decide open rounds by a new reading, and open another.

        A writer that was not open yet when a reading was taken has not ended: only a reading that
        began after a round was read says anything about that round.

        Args:
            began: the moment at which the reading began.
            number: the last number drawn.
            writers: those that were open after it was read, by names that are not given again.

        Returns:
            The highest number that is decided; None if none is known yet.

        Raises:
            Unavailable: another server has been read since the reading began.
        """
        with self._lock:
            if began < self._server_since:
                raise Unavailable("The database has moved to another server.", retry_after=1)
            return self._decide(began, number, writers)

    def _forget(self) -> None:
        self._settled = None
        self._open.clear()

    def _decide(self, began: int, number: int, writers: frozenset[str]) -> int | None:
        read_by = next(self._ticks)
        earlier = [*self._open.values(), *filter(None, [self._settled])]
        if any(began > round_.read_by and number < round_.number for round_ in earlier):
            # The sequence was set back, by TRUNCATE … RESTART IDENTITY or a restored backup.
            self._forget()
        prepared = {writer for writer in writers if writer.startswith(PREPARED)}
        judged: dict[frozenset[str], _Round] = {}
        for holders, round_ in [*self._open.items(), (writers, _Round(number, read_by))]:
            left = holders & writers if began > round_.read_by else holders
            if any(not holder.startswith(PREPARED) for holder in holders - left):
                # One of those who left may have become any of the prepared transactions. They
                # were read just now, so a reading from before says nothing about them.
                left |= prepared
                round_ = _Round(round_.number, read_by)  # noqa: PLW2901 - the same round, later
            if left not in judged or judged[left].number < round_.number:
                judged[left] = round_
        decided = judged.pop(frozenset(), None)
        if decided and (self._settled is None or decided.number > self._settled.number):
            self._settled = decided
        self._open = judged
        return None if self._settled is None else self._settled.number


_KEPT_AS = "zeroeventhub_server"
"""Where a connection keeps the name of its server."""


def server_name(connection: Connection, query: TextClause) -> str:
    """Return the name of the server that a connection leads to, asked for once a connection.

    Args:
        connection: it stays with one server for as long as it is open.
        query: asks for the name.
    """
    if _KEPT_AS not in connection.info:
        connection.info[_KEPT_AS] = str(connection.scalar(query))
    return str(connection.info[_KEPT_AS])
