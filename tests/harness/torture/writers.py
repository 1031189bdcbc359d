"""Writers that hurt: their tables, the kinds of their transactions, and their processes."""

import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection as Line
from threading import Event, Thread
from typing import NamedTuple

import psycopg
import sqlalchemy as sa
from harness.forks import forks
from harness.log import decide
from sqlalchemy import Column, Connection, Engine, Integer, Table, event, func, insert, select, text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import DBAPIError

from zeroeventhub import TableFeed

PARTITIONS = 3
KEYS_OF_A_FEED = 12
NUMBERS = 1000

metadata = sa.MetaData()


def _table(name: str, *columns: str, nullable: bool = True) -> Table:
    return Table(
        name,
        metadata,
        Column("id", sa.BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        *(Column(column, Integer, nullable=nullable) for column in columns),
        sqlite_autoincrement=True,
    )


# A transaction may write to both feeds; the first of them has the readers that share one object.
events, others = FEEDS = [
    _table(name, "part", "key", "n", nullable=False) for name in ("events", "others")
]
for _feed in FEEDS:
    _feed.append_constraint(sa.UniqueConstraint("key", "n"))
    sa.Index(f"{_feed.name}_by_part", _feed.c.part, _feed.c.id)

# Who writes an event of a key counts here first, in the same transaction: writers of a key take
# turns, and n rises in the order of their commits, without gaps.
keys = Table(
    "keys",
    metadata,
    Column("key", Integer, primary_key=True, autoincrement=False),
    Column("n", Integer, nullable=False),
)
KEYS = {
    feed: range(index * KEYS_OF_A_FEED, (index + 1) * KEYS_OF_A_FEED)
    for index, feed in enumerate(FEEDS)
}

# A row of requests becomes an event by a trigger.
requests = _table("requests", "part", "key", "n")
elsewhere = _table("elsewhere", "n")
numbers = Table("numbers", metadata, Column("n", Integer, primary_key=True, autoincrement=False))

_TRIGGERS = {
    "postgresql": """CREATE FUNCTION answer() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO events (part, key, n) VALUES (NEW.part, NEW.key, NEW.n);
            RETURN NULL;
        END $$;
        CREATE TRIGGER answer AFTER INSERT ON requests FOR EACH ROW EXECUTE FUNCTION answer()""",
    "mariadb": """CREATE TRIGGER answer AFTER INSERT ON requests FOR EACH ROW
        INSERT INTO events (part, `key`, n) VALUES (NEW.part, NEW.`key`, NEW.n)""",
    "sqlite": """CREATE TRIGGER answer AFTER INSERT ON requests BEGIN
        INSERT INTO events (part, key, n) VALUES (NEW.part, NEW.key, NEW.n);
        END""",
}
for _dialect, _statement in _TRIGGERS.items():
    sa.event.listen(metadata, "after_create", sa.DDL(_statement).execute_if(dialect=_dialect))


def create_tables(connection: Connection) -> None:
    """Create the tables, with every key at zero."""
    metadata.create_all(connection)
    every = [key for of_feed in KEYS.values() for key in of_feed]
    connection.execute(insert(keys), [{"key": key, "n": 0} for key in every])
    connection.execute(insert(numbers), [{"n": n} for n in range(1, NUMBERS + 1)])


def published(table: Table, ordering: str) -> TableFeed:
    """Publish a table of events in one of the orderings."""
    columns = {"position": "id", "data": ["key", "n"], "partition": "part"}
    return TableFeed(table, ordering=ordering, partitions=PARTITIONS, **columns)


def last_numbers(connection: Connection, feed: Table) -> dict[int, int]:
    """Return the last number of each key; every number from one up to it has been committed."""
    counted = sa.select(feed.c.key, func.max(feed.c.n), func.min(feed.c.n), func.count()).group_by(
        feed.c.key
    )
    last = {}
    for key, highest, lowest, number in connection.execute(counted):
        assert (lowest, highest) == (1, number), f"key {key} of {feed} has gaps of its own"
        last[key] = highest
    return last


PATIENCE = 60
"""Seconds after which writers that do not come to an end, or to their turn, are given up."""

WRITERS = "torture writer"  # the name by which their sessions are told from others
THINKING = 0.05  # seconds at most that a writer thinks with a transaction open
TIDE = 1.0
"""Seconds from one crowd of writers to the next. A crowd hides mistakes that show between few:
somebody old is always open, and holds back what should not be shown for another reason."""

ROLLED_BACK = 0.1
OUTCOMES = ("COMMIT", "COMMIT", "ROLLBACK")
FIRST_OWN_KEY = 1000
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

# What a database may do to an honest writer: conflicts, deadlocks, and ends of its session.
_SQLSTATES = {"40001", "40P01", "57P01", "08003", "08006", None}
_NUMBERS = {1020, 1205, 1213, 1927, 2006, 2013, 0, 1402, 1614}


class Mix(NamedTuple):
    """Count the writers of a round."""

    hurting: int = 10
    fast: int = 16
    bulk: int = 0
    rest: float = 0.1


MIXES = {"postgresql": Mix(), "mariadb": Mix(), "sqlite": Mix(hurting=6, fast=4)}
"""The writers that each database bears: those of SQLite stand in one queue."""

LIGHT = Mix(hurting=4, fast=16, rest=0.02)
"""The writers that mutants are caught by: fast ones, and few that hold everybody back."""


@dataclass
class Written:
    """Say what a writer has written."""

    kinds: Counter[str] = field(default_factory=Counter)
    failure: str | None = None


@dataclass
class Writer:
    """Write one transaction after the other, each of a kind chosen by dice.

    It owns keys that no other writer writes. If it ebbs, it leaves the tables to a few others now
    and then.
    """

    engine: Engine
    kinds: Sequence["Kind"]
    dice: random.Random
    owned: Iterator[int]
    rest: float
    ebbs: bool
    stop: Event
    written: Written = field(default_factory=Written)

    def __post_init__(self) -> None:
        """Begin with the first key of its own."""
        self.dialect = self.engine.dialect.name
        self._tokens = count(1)
        self._change_key()

    def run(self) -> None:
        """Write until the end, or until something happens that should not."""
        kinds: list[Kind] = []
        while not self.stop.is_set() and self.written.failure is None:
            # Every kind has its turn, in an order that is each writer's own.
            kinds = kinds or self.dice.sample(self.kinds, len(self.kinds))
            kind = kinds.pop()
            try:
                self._write(kind)
                self.written.kinds[kind.__name__] += 1
            except Exception as error:  # noqa: BLE001 - the verdict tells it
                self._change_key()
                if not _is_fate(error):
                    self.written.failure = f"{kind.__name__} failed with {error!r}"
            self.pause(self.rest)
            if self.ebbs:  # until the tide comes in, and not at all while it is in
                self.stop.wait(max(0.0, TIDE / 2 - time.monotonic() % TIDE))

    def _write(self, kind: "Kind") -> None:
        level = "SERIALIZABLE" if self.dialect == "sqlite" else self.dice.choice(LEVELS)
        with closing(self.engine.connect()) as connection:
            self.connection = connection.execution_options(isolation_level=level)
            self._lost = False
            kind(self)
            if self._lost:
                return
            if self.dice.random() < ROLLED_BACK:
                connection.rollback()
                self._change_key()
            else:
                self.connection.commit()

    def _change_key(self) -> None:
        """Leave the key of one's own, because it is unknown how far it has come."""
        self._key, self._last = next(self.owned), 0

    def lose(self) -> None:
        """Give the connection up; whatever the server makes of its transaction."""
        self._lost = True
        self.connection.invalidate()

    def pause(self, seconds: float) -> None:
        time.sleep(self.dice.random() * seconds)

    def keys(self, count: int, feed: Table = events) -> list[int]:
        """Choose keys of a feed; all writers take them in one order, so none waits in a circle."""
        return sorted(self.dice.sample(KEYS[feed], count))

    def rows(self, count: int = 1, key: int | None = None) -> list[dict[str, int]]:
        """Take a key's turn and its next numbers; return the events to write."""
        key = self.dice.choice(KEYS[events]) if key is None else key
        turn = sa.update(keys).where(keys.c.key == key).values(n=keys.c.n + count)
        self.connection.execute(turn)
        last = self.connection.scalar(select(keys.c.n).where(keys.c.key == key))
        return _rows(key, last, count)

    def own(self, count: int = 1) -> list[dict[str, int]]:
        """Take the next numbers of the key of one's own; return the events to write."""
        self._last += count
        return _rows(self._key, self._last, count)

    def append(self, key: int | None = None, count: int = 1, feed: Table = events) -> None:
        """Write the next events of a key in one statement."""
        self.connection.execute(insert(feed).values(self.rows(count, key)))

    def select_into(self, rows: list[dict[str, int]]) -> None:
        first = rows[0]
        chosen = select(
            sa.literal(first["part"]), sa.literal(first["key"]), first["n"] - 1 + numbers.c.n
        )
        wanted = chosen.where(numbers.c.n <= len(rows)).order_by(numbers.c.n)
        self.connection.execute(insert(events).from_select(["part", "key", "n"], wanted))

    def token(self) -> str:
        """Return a name that no other writer on the server has."""
        return f"{self.engine.url.database}-{self._key}-{next(self._tokens)}"


def _rows(key: int, last: int, count: int) -> list[dict[str, int]]:
    return [
        {"part": key % PARTITIONS, "key": key, "n": n} for n in range(last - count + 1, last + 1)
    ]


def _is_fate(error: Exception) -> bool:
    cause = getattr(error, "orig", error)  # COPY raises the driver's own
    if not isinstance(error, DBAPIError | psycopg.Error):
        return False
    return (
        getattr(cause, "sqlstate", "") in _SQLSTATES
        or (cause.args and cause.args[0] in _NUMBERS)
        or "database is locked" in str(cause)
    )


Kind = Callable[[Writer], None]  # writes a transaction, and leaves its end to the writer


def early_write(writer: Writer) -> None:
    """Write elsewhere first and think, so that the transaction is older than its number."""
    writer.connection.execute(insert(elsewhere).values(n=1))
    writer.pause(THINKING)
    writer.append()


def thinking(writer: Writer) -> None:
    """Think between the event and its commit."""
    writer.append()
    writer.pause(THINKING)


def many_rows(writer: Writer) -> None:
    """Write several events of a key in one statement, and then more of it."""
    (key,) = writer.keys(1)
    writer.append(key, writer.dice.randint(2, 20))
    writer.pause(THINKING / 5)
    writer.append(key, 2)


def many_keys(writer: Writer) -> None:
    """Write events of several keys, and so of several partitions."""
    for key in writer.keys(4):
        writer.append(key)
        writer.pause(THINKING / 10)


def two_feeds(writer: Writer) -> None:
    """Write events to two feeds in one transaction."""
    for key in writer.keys(2):
        writer.append(key)
    writer.pause(THINKING / 5)
    for key in writer.keys(2, others):
        writer.append(key, feed=others)


def savepoints(writer: Writer) -> None:
    """Write events under a savepoint that is rolled back, and then others."""
    first, second = writer.keys(2)
    with writer.connection.begin_nested() as savepoint:
        writer.append(first, 3)
        writer.pause(THINKING / 5)
        savepoint.rollback()
    writer.append(first)
    with writer.connection.begin_nested():
        writer.append(second)
    writer.pause(THINKING / 5)


def select_into(writer: Writer) -> None:
    """Write events by INSERT … SELECT."""
    writer.select_into(writer.rows(5))
    writer.pause(THINKING / 5)


def by_trigger(writer: Writer) -> None:
    """Write to a table whose trigger writes the event."""
    writer.connection.execute(insert(requests), writer.rows(2))
    writer.pause(THINKING / 5)


def upsert(writer: Writer) -> None:
    """Write events of which one is there already."""
    rows = writer.rows(2)
    writer.connection.execute(insert(events).values(rows[:1]))
    known = {
        "postgresql": postgresql.insert(events).on_conflict_do_nothing(),
        "mariadb": mysql.insert(events).on_duplicate_key_update(n=events.c.n),
        "sqlite": insert(events).prefix_with("OR IGNORE"),
    }
    writer.connection.execute(known[writer.dialect].values(rows))
    writer.pause(THINKING / 5)


def closed(writer: Writer) -> None:
    """Close the connection in the middle."""
    writer.append()
    writer.lose()


def killed(writer: Writer) -> None:
    """Be ended by the server at any moment: while writing, while thinking, while committing."""
    ask, end = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:session)"),
        "mariadb": ("SELECT connection_id()", "KILL :session"),
    }[writer.dialect]
    session = {"session": writer.connection.scalar(text(ask))}

    def kill() -> None:
        with writer.engine.begin() as other:
            other.execute(text(end), session)

    killer = Thread(target=kill)
    writer.append()
    killer.start()
    try:
        writer.pause(0.003)
        writer.connection.commit()
    finally:
        killer.join()
        writer.lose()  # the next one in the pool would meet its end


def severed(writer: Writer) -> None:
    """Lose the line to the server in the middle, or with the commit on its way."""
    writer.append()
    driver = writer.connection.connection
    if writer.dialect == "postgresql":
        descriptor = driver.pgconn.socket
        if writer.dice.random() < 0.5:
            driver.pgconn.send_query(b"COMMIT")
    else:
        descriptor = driver._sock.fileno()  # noqa: SLF001 - the driver has no other
        writer.pause(THINKING / 10)
    with socket.socket(fileno=socket.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)
    writer.lose()


def prepared(writer: Writer) -> None:
    """Prepare the transaction; it is decided from elsewhere, often once its line is gone."""
    for key in writer.keys(2):
        writer.append(key)
    token = writer.token()
    writer.connection.execute(text(f"PREPARE TRANSACTION '{token}'"))
    if writer.dice.random() < 0.5:
        writer.lose()
    writer.pause(THINKING)
    decide(writer.engine, f"{writer.dice.choice(OUTCOMES)} PREPARED '{token}'")


def prepared_by_xa(writer: Writer) -> None:
    """Prepare the transaction; it is decided here, or elsewhere once the line is gone."""
    token = writer.token()
    try:
        writer.connection.execute(text(f"XA START '{token}'"))
        for key in writer.keys(2):
            writer.append(key)
        writer.connection.execute(text(f"XA END '{token}'"))
        writer.connection.execute(text(f"XA PREPARE '{token}'"))
    except DBAPIError:
        writer.lose()  # nothing but XA ROLLBACK would be heard here any more
        raise
    writer.pause(THINKING)
    decision = f"XA {writer.dice.choice(OUTCOMES)} '{token}'"
    if writer.dice.random() < 0.5:
        writer.connection.execute(text(decision))
        return
    writer.lose()
    writer.pause(THINKING)
    decide(writer.engine, decision)


def copy(writer: Writer) -> None:
    """Write events by COPY."""
    rows = writer.rows(writer.dice.randint(1, 20))
    cursor = writer.connection.connection.cursor()
    with cursor, cursor.copy("COPY events (part, key, n) FROM STDIN") as line:
        for row in rows:
            line.write_row([row["part"], row["key"], row["n"]])
            writer.pause(THINKING / 50)


def load_data(writer: Writer) -> None:
    """Write events by LOAD DATA."""
    rows = writer.rows(writer.dice.randint(1, 20))
    with tempfile.NamedTemporaryFile("w") as file:
        file.writelines(f"{row['part']}\t{row['key']}\t{row['n']}\n" for row in rows)
        file.flush()
        load = f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE events (part, `key`, n)"
        writer.connection.execute(text(load))
    writer.pause(THINKING / 5)


def one_row_transactions(writer: Writer) -> None:
    """Write one event a transaction, as fast as can be, and wait for no other writer."""
    for _ in range(writer.dice.randint(1, 40)):
        if not writer.stop.is_set():
            writer.connection.execute(insert(events).values(writer.own()))
            writer.connection.commit()


def bulk(writer: Writer) -> None:
    """Write many events in one transaction."""
    writer.select_into(writer.own(NUMBERS))


_PORTABLE = (early_write, thinking, many_rows, many_keys, two_feeds, savepoints)
_PORTABLE += (select_into, by_trigger, upsert)
HURTING: dict[str, tuple[Kind, ...]] = {
    "postgresql": (*_PORTABLE, killed, severed, prepared, copy),
    "mariadb": (*_PORTABLE, killed, severed, prepared_by_xa, load_data),
    "sqlite": (*_PORTABLE, closed),
}
"""The kinds of each database that take time and other liberties."""


CREWS = 2  # processes of a round: many writers need more than one interpreter


class Crew:
    """A process whose threads write a part of a mix."""

    def __init__(self, *assignment: object) -> None:
        self._line, theirs = Pipe()
        arguments = (theirs, *assignment)
        self._process = forks().Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid
        theirs.close()

    def end(self) -> list[Written]:
        """End the process; return what each writer has written."""
        try:
            self._line.send(None)
            if not self._line.poll(2 * PATIENCE):
                raise TimeoutError("The writers did not come to an end.")
            return self._line.recv()
        finally:
            self._process.kill()
            self._process.join()


def _work(line: Line, url: str, seed: str, mix: Mix, index: int) -> None:
    engine = _engine(url, random.Random(seed))
    stop = Event()
    kinds = (HURTING[engine.dialect.name], (one_row_transactions,), (bulk,))
    staff = [
        (chosen, number > 0)
        for chosen, size in zip(kinds, mix[:3], strict=True)
        for number in range(len(range(index, size, CREWS)))
    ]
    writers = [
        Writer(
            engine,
            chosen,
            random.Random(f"{seed} {index} {number}"),
            # Keys of one's own: no two writers of any crew have a remainder in common.
            count(FIRST_OWN_KEY + index + number * CREWS, 1000),
            mix.rest,
            ebbs,
            stop,
        )
        for number, (chosen, ebbs) in enumerate(staff)
    ]
    threads = [Thread(target=writer.run, daemon=True) for writer in writers]
    try:
        for thread in threads:
            thread.start()
        line.recv()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        engine.dispose()
    line.send([writer.written for writer in writers])


def _engine(url: str, dice: random.Random) -> Engine:
    """Make an engine for writers, whose sessions an operator can tell from others."""
    arguments = {
        "postgresql": {"application_name": WRITERS, "options": "-c deadlock_timeout=50ms"},
        "mariadb": {"local_infile": True, "init_command": "SET innodb_lock_wait_timeout = 5"},
        "sqlite": {"isolation_level": None},
    }[sa.make_url(url).get_backend_name()]
    engine = sa.create_engine(url, connect_args=arguments, pool_size=40, max_overflow=20)
    if engine.dialect.name == "sqlite":
        # The driver would begin at the first write, and a savepoint before it be a transaction.
        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql(dice.choice(("BEGIN", "BEGIN IMMEDIATE")))

    return engine
