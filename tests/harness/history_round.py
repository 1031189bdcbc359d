"""A feed that a disaster befalls, and consumers that go on behind it, or are refused."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import httpx
from starlette.applications import Starlette

from harness.disasters import Disaster, Place
from harness.faults.account import Account
from harness.faults.findings import Findings
from harness.log import Log
from harness.web import serving
from zeroeventhub import Client, feed_routes
from zeroeventhub.errors import Gone, TransientError

__all__ = ["Round"]

PATIENCE = 60
"""Seconds for which a feed may be unable to answer."""


VOUCHED = 0.1
"""Seconds within which a publisher that lives on looks again whether history is the same."""


@dataclass
class Reader:
    """Know a consumer, and what it has seen."""

    name: str
    limit: int
    seen: list[int] = field(default_factory=list)


class Round:
    """Let one disaster befall one feed.

    Some consumers stop before what may be lost is written, some in the midst of it, some behind
    it, and one has not begun. The events that are left decide who may go on.

    Args:
        name: what does it again.
        log: the feed, and its table.
        place: where its database is.
        account: of the consumers.
    """

    def __init__(self, name: str, log: Log, place: Place, account: Account) -> None:
        self._log = log
        self._place = place
        self._account = account
        self._dice = random.Random(name)
        self._found = Findings(Counter(rounds=1))
        self._next = 0
        self._readers = [
            Reader(f"{name}, reader {n}", self._dice.randrange(1, 9)) for n in range(5)
        ]

    def run(self, disaster: Disaster) -> Findings:
        """Run it; the publisher lives through all, or is started anew.

        Args:
            disaster: what happens.
        """
        self._log.publish()
        lives_on = self._dice.random() < 0.5
        with ExitStack() as publisher:
            url = publisher.enter_context(self._publishing())
            self._write(self._dice.randrange(1, 30))
            self._read_some(url, self._readers[:3])
            with disaster(self._place) as strike:
                self._write(self._dice.randrange(60))
                self._read_some(url, self._readers[1:4])
                strike()
                time.sleep(VOUCHED)
                if not lives_on:
                    publisher.close()
                    url = publisher.enter_context(self._publishing())
                self._judge(url)
                publisher.close()
                self._place.engine.dispose()
        return self._found

    @contextmanager
    def _publishing(self) -> Iterator[str]:
        routes = feed_routes("/log", self._log.source(), self._log.engine)
        with serving(Starlette(routes=routes)) as url:
            yield f"{url}/log"

    def _write(self, count: int) -> None:
        """Append events, each in a transaction of its own or all in one."""
        numbers = range(self._next, self._next + count)
        self._next += count
        if self._dice.random() < 0.5:
            self._log.write(*numbers)
        else:
            for number in numbers:
                self._log.write(number)

    def _read_some(self, url: str, readers: list[Reader]) -> None:
        """Let consumers read on for some pages, the last of them to the head."""
        for reader in readers:
            last = reader is readers[-1]
            self._read(url, reader, pages=None if last else self._dice.randrange(1, 5))

    def _read(self, url: str, reader: Reader, *, pages: int | None = None) -> bool:
        """Read on; return whether the feed refused the cursor as one of another history."""
        ending = time.monotonic() + PATIENCE
        with httpx.Client(verify=False, timeout=PATIENCE) as session:
            while True:
                client = Client(url, session)
                try:
                    self._account.read_in_turn(client, reader.name, limit=reader.limit, pages=pages)
                except Gone as error:
                    self._found.counts[type(error).__name__] += 1
                    return True
                except TransientError:
                    # Servers that were just started, and writers who have to be seen to have ended.
                    if time.monotonic() > ending:
                        raise
                    time.sleep(0.02)
                else:
                    return False
                finally:
                    reader.seen = self._account.seen(reader.name).get(0, [])

    def _judge(self, url: str) -> None:
        """See who goes on: at once, and behind new events, which may get numbers of old ones."""
        left = self._left()
        lost = self._next - len(left)
        allowed = {reader.name: left[: len(reader.seen)] == reader.seen for reader in self._readers}
        self._found.counts["lost"] += lost
        for more in (0, 1, lost, self._dice.randrange(1, 40)):
            self._write(more)
            for reader in self._readers:
                self._judge_one(url, reader, may_go_on=allowed[reader.name])

    def _judge_one(self, url: str, reader: Reader, *, may_go_on: bool) -> None:
        before = reader.seen
        refused = self._read(url, reader)
        expected = self._left() if may_go_on else before
        self._found.counts["goes on" if may_go_on else "refused"] += 1
        if refused is may_go_on or reader.seen != expected:
            verdict = "was refused" if refused else "went on"
            self._found.complaints.append(
                f"{reader.name} {verdict}: {before} became {reader.seen}, not {expected}"
            )

    def _left(self) -> list[int]:
        """Return the numbers of the events that there are, in the order of the table."""
        with self._log.engine.connect() as connection:
            return list(connection.exec_driver_sql("SELECT n FROM log ORDER BY id").scalars())
