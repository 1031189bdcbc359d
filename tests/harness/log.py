"""A log: a published table of events that bear numbers, with all that happens to such a table."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table
from sqlalchemy.exc import DBAPIError

from harness.engines import connected
from harness.tables import event_table
from harness.waiting import meanwhile, until
from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import Unavailable

LOG = event_table("log", n=Integer)

PARTITIONED = Table(
    "log",
    MetaData(),
    Column("id", sa.BigInteger, primary_key=True),
    Column("n", Integer, primary_key=True),
)


class Case(NamedTuple):
    """An ordering on a database, and the column of docs/ordering.md that speaks of it."""

    column: str
    database: str
    ordering: str


class Log:
    """A table of events, the feed over it, and a consumer that reads on and on."""

    def __init__(self, engine: Engine, case: Case) -> None:
        self.engine = engine
        self.database = case.database
        self.ordering = case.ordering
        self.feed: Any = None
        self.cursor = FIRST

    @property
    def is_mysql(self) -> bool:
        """Whether it is MySQL, not MariaDB, whose tests may run on either."""
        with self.engine.connect() as connection:
            return self.database == "mariadb" and not connection.dialect.is_mariadb

    def publish(self, table: Table = LOG, **options: Any) -> None:
        """Create the table unless it is there, install what its ordering needs, and start."""
        table.metadata.create_all(self.engine)
        source = self.source(table, **options)
        with self.engine.begin() as connection:
            source.install(connection)
        self.feed = source.bind(self.engine)
        self.feed.info()

    def publish_partitioned(self) -> None:
        """Publish a table whose events up to 1 are in one partition, and all others in another."""
        if self.database == "postgresql":
            self.run(
                "CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY, n integer, "
                "PRIMARY KEY (id, n)) PARTITION BY RANGE (n)",
                "CREATE TABLE log_low PARTITION OF log FOR VALUES FROM (0) TO (2)",
            )
            self.publish(PARTITIONED, position=None if self.ordering == "sequenced" else "id")
            self.run("CREATE TABLE log_high PARTITION OF log FOR VALUES FROM (2) TO (1000)")
        else:
            self.run(
                "CREATE TABLE log (id bigint AUTO_INCREMENT PRIMARY KEY, n integer) "
                "PARTITION BY RANGE (id) (PARTITION p_low VALUES LESS THAN (3), "
                "PARTITION p_high VALUES LESS THAN (1000))"
            )
            self.publish()
        self.assert_news(0)

    def source(self, table: Table = LOG, **options: Any) -> TableFeed:
        """Return its feed without a database."""
        return TableFeed(table, **{"data": ["n"], "ordering": self.ordering, **options})

    def restarted(self, engine: Engine | None = None) -> Any:
        """Return its feed as a new process has it."""
        return self.source().bind(engine or self.engine)

    def run(self, *statements: str) -> None:
        """Run statements in a transaction of their own."""
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def count(self, query: str) -> int:
        with self.engine.connect() as connection:
            return connection.exec_driver_sql(query).scalar()

    def write(self, *numbers: int) -> None:
        """Append events in a transaction of their own."""
        with self.engine.begin() as connection:
            append(connection, *numbers)

    def news(self) -> list[int]:
        """Read on from where the consumer is; return the numbers of the events that it sees."""
        page = self.feed.read(0, self.cursor, 1000)
        self.cursor = page.cursor
        return [event.data["n"] for event in page.events]

    def assert_news(self, *numbers: int) -> None:
        """Append events in a transaction, and show that the consumer sees them next."""
        self.write(*numbers)
        assert self.news() == [*numbers]

    def everything(self) -> list[int]:
        """Return the numbers of the events that a new consumer sees."""
        return [event.data["n"] for event in self.feed.read(0, FIRST, 1000).events]

    def assert_order_of(self, write: Callable[[Connection], Any], *written: int) -> None:
        """Show where the consumer sees events that are written while another commits event 2."""
        with self.engine.connect() as slow:
            slow.begin()
            write(slow)
            self.write(2)
            early = self.news()
            slow.commit()
        late = self.news()
        first = list(written or (1,))
        expected = ([2], first) if self.ordering == "sequenced" else ([], [*first, 2])
        assert (early, late) == expected


def append(connection: Connection, *numbers: int) -> None:
    """Append events in an open transaction."""
    for number in numbers:
        connection.exec_driver_sql(f"INSERT INTO log (n) VALUES ({number})")


@contextmanager
def stranger(log: Log) -> Iterator[tuple[str, Engine]]:
    """Create a user without rights; yield the name, and an engine that connects with it."""
    name = f"stranger_{uuid.uuid4().hex[:8]}"
    if log.database == "postgresql":
        log.run(f"CREATE ROLE {name} LOGIN PASSWORD 'stranger'")
        farewell = [f"DROP OWNED BY {name}", f"DROP ROLE {name}"]
    else:
        # Who has no right to anything in a database may not enter it.
        log.run(
            "CREATE TABLE hall (n integer)",
            f"CREATE USER {name} IDENTIFIED BY 'stranger'",
            f"GRANT SELECT ON {log.engine.url.database}.hall TO {name}",
        )
        farewell = [f"DROP USER {name}"]
    try:
        with connected(log.engine.url.set(username=name, password="stranger")) as engine:
            yield name, engine
    finally:
        log.run(*farewell)


@contextmanager
def polling(feed: Any) -> Iterator[None]:
    """Read a feed from its start over and over, beside what is done meanwhile."""
    reads = []

    def read() -> None:
        with suppress(Unavailable):
            reads.append(feed.read(0, FIRST, 1000))

    with meanwhile(read):
        yield
    assert reads


STILL_OWNED = {1397, 1399}  # XAER_NOTA and XAER_RMFAIL: the server has not missed the session yet


class Preparing:
    """A transaction that is prepared, and whose connection is lost then."""

    def __init__(self, log: Log, statement: str) -> None:
        token = uuid.uuid4().hex
        if log.database == "postgresql":
            before, *self._after = "SELECT 1", f"PREPARE TRANSACTION '{token}'"
            self._decision = f"%s PREPARED '{token}'"
        else:
            before, *self._after = (f"XA {word} '{token}'" for word in ("START", "END", "PREPARE"))
            self._decision = f"XA %s '{token}'"
        self._engine = log.engine
        self._connection = log.engine.connect()
        self._decided = False
        for line in (before, statement):
            self._connection.exec_driver_sql(line)

    def prepare(self) -> None:
        if not self._connection.closed:
            for line in self._after:
                self._connection.exec_driver_sql(line)
            self._connection.invalidate()
            self._connection.close()

    def commit(self) -> None:
        self._decided = decide(self._engine, self._decision % "COMMIT")

    def close(self) -> None:
        """Leave nothing prepared, which would keep its database from being dropped."""
        self.prepare()
        if not self._decided:
            decide(self._engine, self._decision % "ROLLBACK")


@contextmanager
def prepared(log: Log, statement: str) -> Iterator[Callable[[], None]]:
    """Prepare a transaction and lose its connection; yield what commits it."""
    with closing(Preparing(log, statement)) as writer:
        writer.prepare()
        yield writer.commit


def decide(engine: Engine, decision: str) -> bool:
    """Decide over a prepared transaction as soon as the server has missed its session."""

    def is_decided() -> bool:
        try:
            connection.execute(sa.text(decision))
        except DBAPIError as error:
            if error.orig.args[0] not in STILL_OWNED:
                raise
            return False
        return True

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        return until(is_decided, f"the server obeys {decision!r}")
