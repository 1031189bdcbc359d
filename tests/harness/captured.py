"""Tables whose changes are captured while writers collide: row R19."""

import random
import threading

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from harness.engines import connected
from harness.statements import execute
from zeroeventhub import Capture, EventLog
from zeroeventhub.databases.error_codes import is_transient

PERSON = "CREATE TABLE person (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(40), age INTEGER)"
CASCADES = """CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY,
    parent INTEGER REFERENCES person (id) ON DELETE CASCADE ON UPDATE CASCADE)"""


def events(connection, log):
    """Return the key, the type and the data of each event, in the order of positions."""
    columns = log.table.c
    query = sa.select(columns.key, columns.type, columns.data).order_by(columns.position)
    return connection.execute(query).all()


def applied(rows):
    """Apply events in their order: the rows that are there after them, by key."""
    state = {}
    for row in rows:
        assert row.type == f"{row.data['table']}.{row.data['operation']}"
        if row.data["after"] is None:
            state.pop(row.key, None)
        else:
            state[row.key] = row.data["after"]
    return state


def there(connection, table="person", key="id"):
    """Return the rows of a table, by the keys that a log has for them."""
    found = connection.execute(sa.text(f"SELECT * FROM {table}")).mappings()
    return {f"{table}/{row[key]}": dict(row) for row in found}


HASTE = {"postgresql": {"options": "-c deadlock_timeout=10ms"}}


class Writer(threading.Thread):
    """A writer of random transactions, which collide with those of others."""

    def __init__(self, url, seed, ending):
        super().__init__(daemon=True)
        self._url, self._random, self._ending = url, random.Random(seed), ending
        self.failure = None

    def run(self):
        try:
            haste = HASTE.get(sa.make_url(self._url).get_backend_name(), {})
            with connected(self._url, **haste) as engine:
                while not self._ending.is_set():
                    self._transaction(engine)
        except Exception as error:  # noqa: BLE001 - the test raises it
            self.failure = error

    def _transaction(self, engine):
        try:
            with engine.connect() as connection:
                if engine.dialect.name == "sqlite":
                    connection.exec_driver_sql("PRAGMA foreign_keys = ON")
                for _ in range(self._random.randint(1, 4)):
                    connection.exec_driver_sql(self._statement(engine.dialect.name))
                if self._random.random() < 0.2:
                    connection.rollback()
                else:
                    connection.commit()
        except DBAPIError as error:
            is_expected = is_transient(error) or isinstance(error, sa.exc.IntegrityError)
            if not is_expected:
                raise

    def _statement(self, database):
        draw, pick = self._random, lambda: self._random.randint(1, 12)
        one, other, age = pick(), pick(), draw.randint(0, 99)
        name = f"n{pick()}"
        replace = {
            "sqlite": f"INSERT OR REPLACE INTO person VALUES ({one}, '{name}', {age})",
            "mariadb": f"REPLACE INTO person VALUES ({one}, '{name}', {age})",
            "postgresql": f"INSERT INTO person VALUES ({one}, '{name}', {age}) "
            "ON CONFLICT (id) DO UPDATE SET age = excluded.age",
        }[database]
        if database == "postgresql" and draw.random() < 0.02:
            return "TRUNCATE person CASCADE"
        return draw.choice(
            [
                f"INSERT INTO person VALUES ({one}, '{name}', {age})",
                replace,
                f"UPDATE person SET age = {age} WHERE id = {one}",
                f"UPDATE person SET age = age + 1 WHERE id BETWEEN {one} AND {one + 3}",
                f"UPDATE person SET id = {other} WHERE id = {one}",
                f"UPDATE person SET name = '{name}' WHERE id = {one}",
                f"DELETE FROM person WHERE id = {one}",
                f"DELETE FROM person WHERE id BETWEEN {one} AND {one + 2}",
                f"INSERT INTO child VALUES ({other}, {one})",
            ]
        )


CHILD = {"mariadb": "CREATE TABLE child (id INTEGER NOT NULL PRIMARY KEY, parent INTEGER)"}
SNAPSHOT = {
    "postgresql": [
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "LOCK TABLE person, child IN ACCESS SHARE MODE",  # a snapshot does not see through TRUNCATE
    ],
    "mariadb": ["START TRANSACTION WITH CONSISTENT SNAPSHOT"],
    "sqlite": ["BEGIN"],
}


def compare(connection, log):
    """Assert at one moment that the log is the tables; return how many events it has."""
    for statement in SNAPSHOT[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    state = there(connection) | there(connection, "child")
    rows = events(connection, log)
    assert applied(rows) == state
    connection.exec_driver_sql("ROLLBACK")
    return len(rows)


def tortured(url, wanted, seed):
    """Capture the tables of an empty database while writers collide, until the log is long enough.

    Assert again and again that the log is the tables; return how many events it has.
    """
    ending = threading.Event()
    writers = [Writer(url, f"{seed} {number}", ending) for number in range(4)]
    metadata = sa.MetaData()
    log = EventLog(metadata, "changes")
    with connected(url) as engine:
        name = engine.dialect.name
        if name == "sqlite":
            execute(engine, "PRAGMA journal_mode = WAL")
        unique = "CREATE UNIQUE INDEX by_name ON person (name)"
        execute(engine, PERSON, unique, CHILD.get(name, CASCADES))
        for writer in writers:
            writer.start()
        metadata.create_all(engine)
        alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        try:
            for table in ("person", "child"):
                with engine.begin() as connection:
                    Capture(log, table).install(connection)
            with alone.connect() as connection:
                while compare(connection, log) < wanted:
                    assert [writer.failure for writer in writers] == [None] * 4
        finally:
            ending.set()
            for writer in writers:
                writer.join()
        with alone.connect() as connection:
            return compare(connection, log)
