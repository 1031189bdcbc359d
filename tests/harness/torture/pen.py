"""What a writer holds: one transaction at a time, and the words to write events with."""

import random
import socket
import time
from collections.abc import Iterable, Sequence
from itertools import count
from threading import Event

from sqlalchemy import Connection, Engine, Insert, Table, insert, select, text, update

from harness.torture.schema import KEYS, PARTITIONS, events, keys

KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:session)"),
    "mariadb": ("SELECT connection_id()", "KILL :session"),
}


class Pen:
    """Write to the tables of a round in one transaction.

    Args:
        engine: of the writers.
        dice: every choice comes from it.
        owned: numbers of keys that nobody else writes.
        stop: is set when the writing comes to its end.
    """

    connection: Connection

    def __init__(
        self, engine: Engine, dice: random.Random, owned: Iterable[int], stop: Event
    ) -> None:
        self.engine = engine
        self.dice = dice
        self.stop = stop
        self.transactions = 0
        self._owned = iter(owned)
        self._tokens = count(1)
        self.change_key()

    def change_key(self) -> None:
        """Leave the key of one's own, because nobody can say how far it has come."""
        self._key, self._last = next(self._owned), 0

    def begin(self, connection: Connection) -> None:
        """Write through this connection from here on."""
        self.connection = connection
        self.lost = False

    def commit(self) -> None:
        """Commit what has been written."""
        self.connection.commit()
        self.transactions += 1

    def pause(self, seconds: float) -> None:
        """Think for up to so many seconds."""
        time.sleep(self.dice.random() * seconds)

    def keys(self, count: int, feed: Table = events) -> list[int]:
        """Choose keys of a feed; everybody takes them in one order, so nobody waits in a circle."""
        return sorted(self.dice.sample(KEYS[feed], count))

    def key(self) -> int:
        """Choose a key of the first feed."""
        return self.dice.choice(KEYS[events])

    def rows(self, key: int, count: int = 1) -> list[dict[str, int]]:
        """Take a key's turn and its next numbers; return the events to write."""
        turn = update(keys).where(keys.c.key == key).values(n=keys.c.n + count)
        self.connection.execute(turn)
        last = self.connection.scalar(select(keys.c.n).where(keys.c.key == key))
        return [_row(key, n) for n in range(last - count + 1, last + 1)]

    def own(self, count: int = 1) -> list[dict[str, int]]:
        """Take the next numbers of the key of one's own; return the events to write."""
        self._last += count
        return [_row(self._key, n) for n in range(self._last - count + 1, self._last + 1)]

    def write(self, rows: Sequence[dict[str, int]], feed: Table = events) -> None:
        """Write events in one statement."""
        self.connection.execute(self.statement(rows, feed))

    def statement(self, rows: Sequence[dict[str, int]], feed: Table = events) -> Insert:
        """Return the statement that writes events."""
        return insert(feed).values(rows)

    def append(self, key: int, count: int = 1, feed: Table = events) -> None:
        """Write the next events of a key."""
        self.write(self.rows(key, count), feed)

    def token(self) -> str:
        """Return a name that nobody else on the server has."""
        return f"{self.engine.url.database}-{self._key}-{next(self._tokens)}"

    def session(self) -> int:
        """Return the server's number of this session."""
        return self.connection.scalar(text(KILL[self.engine.dialect.name][0]))

    def kill(self, session: int) -> None:
        """Let the server end a session."""
        with self.engine.connect() as other:
            other.execute(text(KILL[self.engine.dialect.name][1]), {"session": session})
            other.commit()

    def cut(self, descriptor: int) -> None:
        """Cut the line to the server without a word."""
        with socket.socket(fileno=socket.dup(descriptor)) as line:
            line.shutdown(socket.SHUT_RDWR)
        self.lose()

    def lose(self) -> None:
        """Give the connection up; whatever the server makes of its transaction."""
        self.lost = True
        self.connection.invalidate()


def _row(key: int, n: int) -> dict[str, int]:
    return {"part": key % PARTITIONS, "key": key, "n": n}
