"""Let disasters befall publishers for as long as one likes: row R6 of the report."""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
from sqlalchemy import create_engine, event, make_url

from harness.databases import PATIENCE, Cluster, cluster, restore
from harness.faults.account import Account, Findings, naming
from harness.log import Log
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    ON_SQLITE,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SINGLE_WRITER,
    Case,
)
from harness.readers import mounted
from harness.statements import execute, scalars
from zeroeventhub import Client
from zeroeventhub.errors import Gone, TransientError

VOUCHED = 0.1
"""Seconds within which a publisher that lives on looks again whether history is the same."""

Database = Callable[[], AbstractContextManager[str]]


class Place:
    """Know where a publisher's database is by now, as a name does that leads to it."""

    def __init__(self, url: str, new_database: Database, server: Cluster | None) -> None:
        self.url = make_url(url)
        self.new_database = new_database
        self.server = server
        self.engine = create_engine(url)
        event.listen(self.engine, "do_connect", self._lead)

    def move(self, url: object) -> None:
        self.url = make_url(url)
        self.engine.dispose()

    def _lead(self, dialect, _record, _arguments, parameters) -> None:
        _, found = dialect.create_connect_args(self.url)
        parameters.update(found)


Disaster = Callable[[Place], AbstractContextManager[Callable[[], None]]]
"""Prepare one, and yield what lets it happen; what is written in between may be lost by it."""


@contextmanager
def failover(place: Place) -> Iterator[Callable[[], None]]:
    """Promote a standby that has everything."""
    with place.server.standby() as standby:

        def strike() -> None:
            standby.catch_up(place.server)
            _promote(standby, place)

        yield strike


@contextmanager
def lagging_failover(place: Place) -> Iterator[Callable[[], None]]:
    """Promote a standby that has heard of nothing since this."""
    with place.server.standby() as standby:
        standby.catch_up(place.server)
        standby.cut_off()
        yield lambda: _promote(standby, place)


def _promote(standby: Cluster, place: Place) -> None:
    standby.promote()
    place.move(place.url.update_query_dict({"host": standby.socket}))


@contextmanager
def dump(place: Place) -> Iterator[Callable[[], None]]:
    """Dump and restore everything."""
    with place.new_database() as url:

        def strike() -> None:
            restore(place.url, url)
            place.move(url)

        yield strike


@contextmanager
def backup(place: Place) -> Iterator[Callable[[], None]]:
    """Restore a dump that was made before."""
    with place.new_database() as url:
        restore(place.url, url)
        yield lambda: place.move(url)


EMPTY = {
    "postgresql": ["TRUNCATE log RESTART IDENTITY"],
    "mariadb": ["TRUNCATE log"],
    "sqlite": ["DELETE FROM log", "DELETE FROM sqlite_sequence WHERE name = 'log'"],
}


@contextmanager
def emptied_table(place: Place) -> Iterator[Callable[[], None]]:
    """Empty the table, and let its numbers begin again."""
    yield lambda: execute(place.engine, *EMPTY[place.url.get_backend_name()])


@dataclass(frozen=True)
class Kind:
    """Describe what befalls publishers."""

    name: str
    disaster: Disaster
    cases: tuple[Case, ...]
    size: int
    keeps: bool = False


_POSTGRESQL = (OBSERVED, GATED, SEQUENCED)
_SERVERS = (*_POSTGRESQL, OBSERVED_MARIADB, SEQUENCED_MARIADB)
# Who numbers events itself keeps the numbers of those that are deleted.
_EMPTIED = (OBSERVED, GATED, OBSERVED_MARIADB, SINGLE_WRITER)

KINDS = (
    Kind("failover, nothing lost", failover, _POSTGRESQL, 40, keeps=True),
    Kind("failover, events lost", lagging_failover, _POSTGRESQL, 50),
    Kind("restored dump, nothing lost", dump, (*_SERVERS, *ON_SQLITE), 30, keeps=True),
    Kind("restored dump, events lost", backup, (*_SERVERS, *ON_SQLITE), 40),
    Kind("emptied table", emptied_table, _EMPTIED, 20),
)
"""What can happen; two hundred rounds in all."""


class Round:
    """Let one disaster befall one feed.

    Some consumers stop before what may be lost is written, some in the midst of it, some behind
    it, and one has not begun. The events that are left decide who may go on.
    """

    def __init__(self, name: str, log: Log, place: Place, account: Account) -> None:
        self._log = log
        self._place = place
        self._account = account
        self._dice = random.Random(name)
        self._found = Findings(Counter(rounds=1))
        self._next = 0
        self._limits = {f"{name}, reader {n}": self._dice.randrange(1, 9) for n in range(5)}

    def run(self, disaster: Disaster) -> Findings:
        """Run it; the publisher lives through all, or is started anew."""
        self._log.publish()
        lives_on = self._dice.random() < 0.5
        with ExitStack() as publisher:
            url = publisher.enter_context(mounted(self._log.source(), self._log.engine))
            self._write(self._dice.randrange(1, 30))
            readers = [*self._limits]
            self._read_some(url, readers[:3])
            with disaster(self._place) as strike:
                self._write(self._dice.randrange(60))
                self._read_some(url, readers[1:4])
                strike()
                time.sleep(VOUCHED)
                if not lives_on:
                    publisher.close()
                    url = publisher.enter_context(mounted(self._log.source(), self._log.engine))
                self._judge(url)
                publisher.close()
                self._place.engine.dispose()
        return self._found

    def _write(self, count: int) -> None:
        numbers = range(self._next, self._next + count)
        self._next += count
        if self._dice.random() < 0.5:
            self._log.write(*numbers)
        else:
            for number in numbers:
                self._log.write(number)

    def _read_some(self, url: str, readers: list[str]) -> None:
        """Let consumers read on for some pages, the last of them to the head."""
        for reader in readers:
            last = reader is readers[-1]
            self._read(url, reader, pages=None if last else self._dice.randrange(1, 5))

    def _read(self, url: str, reader: str, *, pages: int | None = None) -> bool:
        """Read on; return whether the feed refused the cursor as one of another history."""
        ending = time.monotonic() + PATIENCE
        with httpx.Client(verify=False, timeout=PATIENCE) as session:
            while True:
                client, limit = Client(url, session), self._limits[reader]
                try:
                    self._account.read_in_turn(client, reader, limit=limit, pages=pages)
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

    def _seen(self, reader: str) -> list[int]:
        return self._account.seen(reader).get(0, [])

    def _judge(self, url: str) -> None:
        """See who goes on: at once, and behind new events, which may get numbers of old ones."""
        left = self._left()
        lost = self._next - len(left)
        seen = {reader: self._seen(reader) for reader in self._limits}
        allowed = {reader: left[: len(numbers)] == numbers for reader, numbers in seen.items()}
        self._found.counts["lost"] += lost
        for more in (0, 1, lost, self._dice.randrange(1, 40)):
            self._write(more)
            for reader, may_go_on in allowed.items():
                before, refused = self._seen(reader), self._read(url, reader)
                after, expected = self._seen(reader), self._left() if may_go_on else before
                self._found.counts["goes on" if may_go_on else "refused"] += 1
                if refused is may_go_on or after != expected:
                    verdict = "was refused" if refused else "went on"
                    self._found.complaints.append(
                        f"{reader} {verdict}: {before} became {after}, not {expected}"
                    )

    def _left(self) -> list[int]:
        return scalars(self._log.engine, "SELECT n FROM log ORDER BY id")


@dataclass
class Histories:
    """Run rounds, one for each seed and kind."""

    databases: Mapping[str, Database]
    server: Cluster
    account: Account
    folder: str

    @classmethod
    @contextmanager
    def open(cls, databases: Mapping[str, Database]) -> Iterator[Self]:
        with (
            tempfile.TemporaryDirectory() as name,
            cluster() as server,
            Account.open(Path(name) / "consumer.db") as account,
        ):
            yield cls(databases, server, account, name)

    def cases(self, kind: Kind) -> list[Case]:
        """Say what a disaster may befall here."""
        there = {"postgresql", "sqlite", *self.databases}
        return [case for case in kind.cases if case.database in there]

    def run(self, kind: Kind, seed: int) -> Findings:
        cases = self.cases(kind)
        case = cases[seed % len(cases)]
        name = f"{kind.name}, {case.ordering} on {case.database}, seed {seed}"
        with naming(name), self.place(case) as place:
            log = Log(place.engine, case)
            found = Round(name, log, place, self.account).run(kind.disaster)
        if kind.keeps and found.counts["lost"]:
            found.complaints.append(f"{name}: events were lost")
        return found

    @contextmanager
    def place(self, case: Case) -> Iterator[Place]:
        """Make an empty database that a disaster may befall."""
        own = {"postgresql": self._new_database, "sqlite": self._new_file}
        new = {**self.databases, **own}[case.database]
        with new() as url:
            place = Place(url, new, self.server if case.database == "postgresql" else None)
            yield place
            place.engine.dispose()

    @contextmanager
    def _new_database(self) -> Iterator[str]:
        url = self.server.new_database()
        yield url
        self.server.ask(f"DROP DATABASE {url.rpartition('/')[2].partition('?')[0]} WITH (FORCE)")

    @contextmanager
    def _new_file(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield f"sqlite:///{name}/log.db"
