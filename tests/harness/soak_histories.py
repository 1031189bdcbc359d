"""Let disasters befall publishers for as long as one likes: row R6 of the scoreboard."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.clusters import Cluster, cluster
from harness.disasters import (
    Disaster,
    Place,
    backup,
    copied_file,
    crash,
    dump,
    emptied_table,
    failover,
    lagging_failover,
)
from harness.faults.account import Account
from harness.faults.findings import Findings, naming
from harness.history_round import Round
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

__all__ = ["KINDS", "Histories", "Kind"]

Database = Callable[[], AbstractContextManager[str]]


@dataclass(frozen=True)
class Kind:
    """Describe what befalls publishers.

    Attributes:
        name: of the disaster.
        disaster: what happens.
        cases: databases and orderings that it may befall.
        size: how many rounds of it are enough.
        keeps: whether nothing is lost by it.
    """

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
    Kind("restored dump, events lost", backup, _SERVERS, 30),
    Kind("restored file, events lost", copied_file, ON_SQLITE, 10),
    Kind("crash without synchronous commits", crash, _POSTGRESQL, 20),
    Kind("emptied table", emptied_table, _EMPTIED, 20),
)
"""What can happen; two hundred rounds in all."""


@dataclass
class Histories:
    """Run rounds, one for each seed and kind.

    Attributes:
        databases: by name, what makes an empty one.
        server: the PostgreSQL server that is struck.
        account: of the consumers.
        folder: for files.
    """

    databases: Mapping[str, Database]
    server: Cluster
    account: Account
    folder: Path

    @classmethod
    @contextmanager
    def open(cls, databases: Mapping[str, Database]) -> Iterator[Self]:
        """Start what is struck.

        Args:
            databases: by name, what makes an empty one.
        """
        with tempfile.TemporaryDirectory() as name, cluster() as server:
            # What was committed without being written is lost for as long as this.
            server.ask("ALTER SYSTEM SET wal_writer_delay = '10s'")
            server.ask("SELECT pg_reload_conf()")
            folder = Path(name)
            account = Account(folder / "consumer.db")
            yield cls(databases, server, account, folder)
            account.dispose()

    def cases(self, kind: Kind) -> list[Case]:
        """Say what a disaster may befall here."""
        there = {"postgresql", "sqlite", *self.databases}
        return [case for case in kind.cases if case.database in there]

    def run(self, kind: Kind, seed: int) -> Findings:
        """Run a round."""
        cases = self.cases(kind)
        case = cases[seed % len(cases)]
        name = f"{kind.name}, {case.ordering} on {case.database}, seed {seed}"
        with naming(name), self._place(case) as place:
            log = Log(place.engine, case)
            found = Round(name, log, place, self.account).run(kind.disaster)
        if kind.keeps and found.counts["lost"]:
            found.complaints.append(f"{name}: events were lost")
        return found

    @contextmanager
    def _place(self, case: Case) -> Iterator[Place]:
        with ExitStack() as stack:
            server = None
            if case.database == "postgresql":
                server, new = self.server, self._new_database
            elif case.database == "sqlite":
                new = self._new_file
            else:
                new = self.databases[case.database]
            place = Place(stack.enter_context(new()), new, server)
            stack.callback(place.engine.dispose)
            yield place

    @contextmanager
    def _new_database(self) -> Iterator[str]:
        url = self.server.new_database()
        yield url
        self.server.ask(f"DROP DATABASE {url.rpartition('/')[2].partition('?')[0]} WITH (FORCE)")

    @contextmanager
    def _new_file(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield f"sqlite:///{name}/log.db"
