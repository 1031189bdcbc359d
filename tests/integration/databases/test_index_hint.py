"""Every query of a feed costs the same wherever it reads in a table of many events."""

import re
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from harness import shop
from harness.databases import new_database
from harness.statements import execute, scalars
from psycopg import sql
from sqlalchemy.util.langhelpers import HasMemoized

from zeroeventhub import FIRST, LAST, TableFeed, TypeFilter
from zeroeventhub.databases.sqlite import register
from zeroeventhub.errors import BadCursor
from zeroeventhub.publisher import page_query
from zeroeventhub.publisher.partition_hash import hash_on_connect, partition_expression

pytestmark = pytest.mark.filterwarnings(
    "ignore:Skipped unsupported reflection of expression-based index"
)

MOST = 8  # with how many parameters a statement is looked at, of hundreds that pieces have
ROWS = 20_000  # how many events show at once a query that reads too many
LIMIT = 10
WINDOW = 200
RARE = TypeFilter(frozenset({"rare"}))


FEW = 100  # how many events the last partition has, behind all others

metadata = sa.MetaData()
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("skewed", sa.Integer, nullable=False),
    sa.Column("spread", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("name", sa.String(20), nullable=False),
    sa.Column("happened", sa.DateTime, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Index("events_skewed", "skewed", "id"),
    sa.Index("events_spread", "spread", "id"),
    sa.Index("events_by_name", "name"),
    sa.Index("events_by_time", "skewed", "happened", "id"),
    sa.Index("events_by_time_alone", "happened"),
    sqlite_autoincrement=True,
)
BY_NAME = partition_expression(events.c.name, 4)

FILL = {
    "postgresql": """INSERT INTO events
SELECT n, CASE WHEN n > {late} THEN 1 ELSE 0 END, n * 7919 % 16,
    CASE WHEN n % 1000 = 0 THEN 'rare' ELSE 'usual' END, 'e' || n,
    timestamp '2020-01-01' + n * interval '1 second', '{{"n": 1}}'
FROM generate_series(1, {rows}::bigint) AS n""",
    "mariadb": """INSERT INTO events
SELECT seq, IF(seq > {late}, 1, 0), seq * 7919 % 16,
    IF(seq % 1000 = 0, 'rare', 'usual'), CONCAT('e', seq),
    TIMESTAMPADD(SECOND, seq, '2020-01-01'), '{{"n": 1}}'
FROM seq_1_to_{rows}""",
    "sqlite": """INSERT INTO events
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})
SELECT n, iif(n > {late}, 1, 0), n * 7919 % 16,
    iif(n % 1000 = 0, 'rare', 'usual'), 'e' || n,
    strftime('%Y-%m-%d %H:%M:%S', '2020-01-01', '+' || n || ' seconds'), '{{"n": 1}}'
FROM numbers""",
}

FEEDS = {
    "one partition": {},
    "skewed": {"partition": "skewed", "partitions": 3},
    "spread": {"partition": "spread", "partitions": 17},
    "sequenced": {"partition": "skewed", "partitions": 3, "ordering": "sequenced"},
}


def feed(name):
    """The feed over the events of this name; each of its partitions but the last has events."""
    options = FEEDS[name] if name != "by expression" else {"partition": BY_NAME, "partitions": 5}
    # Of the partitions, only those that are skewed have an index of their times.
    timed = name in {"one partition", "skewed", "sequenced"}
    time = {"time": "happened"} if timed else {}
    return TableFeed(events, data="data", type="kind", id="name", **time, **options)


def fill(engine):
    """Fill the tables: that of the events, and those that the ordering sequenced has beside it."""
    metadata.create_all(engine)
    hash_on_connect(engine)
    database = engine.dialect.name
    with engine.begin() as connection:
        if database == "postgresql":
            # As after a bulk load, without statistics yet.
            connection.exec_driver_sql("ALTER TABLE events SET (autovacuum_enabled = off)")
        statement = FILL[database].format(rows=ROWS, late=ROWS - FEW)
        connection.exec_driver_sql(
            statement.replace("%", "%%") if database != "sqlite" else statement
        )
        if database == "postgresql":
            connection.exec_driver_sql(
                f"SELECT setval(pg_get_serial_sequence('events', 'id'), {ROWS})"
            )
        if database != "mariadb":
            sa.Index("events_by_expression", BY_NAME, events.c.id).create(connection)
        _give_positions(connection)
    events.indexes = {index for index in events.indexes if index.name != "events_by_expression"}


def _give_positions(connection):
    """Give every event the position of its number, as the ordering would in many small steps."""
    ordering = feed("sequenced").ordering(connection.dialect.name)
    for statement in ordering.ddl(connection).install:
        connection.execute(sa.text(statement.replace(":", r"\:")))
    positions = ordering.source.table.name
    state = positions.replace("_positions_", "_state_")
    partition = connection.dialect.identifier_preparer.quote("partition")
    given = f"INSERT INTO {positions} (position, key_1, {partition}, at) "
    connection.execute(sa.text(f"{given} SELECT id, id, skewed, happened FROM events"))
    if connection.dialect.name == "sqlite":
        return  # it counts in sqlite_sequence
    low = ", low" if connection.dialect.name == "postgresql" else ""
    values = f"1, {ROWS}, '2020-02-01'" + (", 0" if low else "")
    connection.execute(sa.text(f"INSERT INTO {state} (id, last, at{low}) VALUES ({values})"))


@contextmanager
def noting(engine):
    """Note the statements that are sent, with their parameters."""
    seen = []

    def note(connection, cursor, statement, parameters, *_):
        if not statement.startswith("EXPLAIN") and re.search(
            r"\bFROM [`\"]?(events|zeroeventhub_positions)", statement
        ):
            seen.append((statement, parameters))

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def nodes(plan):
    """Yield the nodes of a plan of PostgreSQL."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def plans_on_postgresql(engine, statement, parameters):
    """Return how PostgreSQL carries a statement out: planned for its values, and for any.

    A statement that has numbered parameters already is only ever planned for their values.
    """
    modes = ("force_custom_plan", "force_generic_plan")
    if isinstance(parameters, list):
        parameters = {str(number): value for number, value in enumerate(parameters, 1)}
        statement, modes = re.sub(r"\$(\d+)", r"%(\1)s", statement), modes[:1]
    names = [*dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))]
    for number, name in enumerate(names, 1):
        statement = statement.replace(f"%({name})s", f"${number}")
    values = ", ".join(sql.Literal(parameters[name]).as_string() for name in names)
    plans = {}
    with engine.connect() as connection:
        for mode in modes:
            settings = ("enable_sort = off", "enable_seqscan = off", f"plan_cache_mode = {mode}")
            for setting in settings:
                connection.exec_driver_sql(f"SET LOCAL {setting}")
            run = f"EXECUTE one ({values})" if names else "EXECUTE one"
            cursor = connection.connection.cursor()
            cursor.execute(f"PREPARE one AS {statement.replace('%%', '%')}")
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {run}")
            plans[mode] = cursor.fetchone()[0][0]["Plan"]
            cursor.execute("DEALLOCATE one")
    return plans


def steps_on_sqlite(path, statement, parameters):
    """Count the steps of SQLite's machine that a statement takes, and return its plan."""
    steps = []
    with closing(sqlite3.connect(path)) as connection:
        register(connection)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        connection.set_progress_handler(lambda: steps.append(100), 100)
        connection.execute(statement, parameters).fetchall()
    return sum(steps), plan


READ = ("key", "next", "prev", "first", "last", "rnd", "rnd_next")


def rows_on_mariadb(connection):
    """Return how many rows and entries of indexes a session of MariaDB has read."""
    found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read_%%'").all()
    return sum(int(row[1]) for row in found if row[0].removeprefix("Handler_read_") in READ)


@pytest.fixture(scope="module")
def full(request, tmp_path_factory):
    """An engine of the database that a test names, with many events."""
    if request.param == "sqlite":
        file = nullcontext(f"sqlite:///{tmp_path_factory.mktemp('many') / 'many.db'}")
    else:
        file = new_database(request.getfixturevalue(f"{request.param}_server_url"))
    with file as url:
        engine = sa.create_engine(url)
        fill(engine)
        yield engine
        engine.dispose()


@pytest.fixture(autouse=True)
def small_window(monkeypatch):
    """A filtered page looks at fewer rows, so that looking at too many is seen at once."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", WINDOW)


def questions(bound):
    """Everything that can be asked of a feed, and how many rows an answer may look at."""
    places = {
        position: bound.cursor_after(position)
        for position in (ROWS // 2, ROWS - 5 * FEW, ROWS - FEW, ROWS)
    }
    late = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=ROWS - FEW // 2)
    partitions = [each.id for each in bound.info().partitions]
    for partition in {partitions[0], *partitions[-2:]}:
        for cursor in (FIRST, *places.values()):
            yield lambda p=partition, c=cursor: bound.read(p, c, LIMIT), LIMIT
            yield lambda p=partition, c=cursor: bound.read(p, c, LIMIT, types=RARE), 2 * WINDOW
            yield lambda p=partition, c=cursor: bound.read(p, c, LIMIT, stop=places[ROWS]), LIMIT
        yield lambda p=partition: bound.lag(p, places[ROWS - 5 * FEW]), 5 * FEW
        for cursor in (FIRST, *places.values()):
            yield lambda p=partition, c=cursor: bound.cursor_of_count(p, c, LIMIT), LIMIT
        if "cursor-of-time" in bound.info().extensions:
            yield lambda p=partition: bound.cursor_at(late, p), FEW
    yield lambda: bound.read(partitions[0], LAST, LIMIT), 1
    yield lambda: bound.splits(partitions[0], 4), 210
    yield lambda: bound.splits(partitions[0], 4, start=places[ROWS - FEW]), 1_000
    yield bound.head, 1
    yield lambda: bound.cursor_after(ROWS // 2), 1
    yield lambda: found(bound, partitions[0]), 1


def found(bound, partition):
    """Look for an event by its id, which need not be in the partition."""
    with suppress(BadCursor):
        bound.cursor_of(f"e{ROWS // 2}", partition)


def ready(engine, name):
    """A feed that has looked at its table; its strays were looked for as well."""
    bound = feed(name).bind(engine)
    bound.info()
    # The first pages say how large rows are.
    for _ in range(4):
        bound.read(0, FIRST, LIMIT)
    return bound


def asked(engine, name):
    """Everything that a feed sends, from its first look at the table on, by question."""
    bound = feed(name).bind(engine)
    with noting(engine) as seen:
        bound.info()
        all_seen = [(seen[:], 1)]
        for question, read in questions(ready(engine, name)):
            seen.clear()
            question()
            all_seen.append((seen[:], read))
    return all_seen


def distinct(found):
    """Ask about each statement with some of its parameters, and about each of those once."""
    known = {}
    for statements, rows in found:
        for statement, parameters in statements:
            same = known.setdefault(statement, {})
            if len(same) < MOST or repr(parameters) in same:
                before = same.get(repr(parameters), (parameters, 0))
                same[repr(parameters)] = parameters, max(rows, before[1])
    return [(text_, *each) for text_, same in known.items() for each in same.values()]


@pytest.mark.parametrize("full", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "state", ["never analyzed", pytest.param("analyzed", marks=pytest.mark.test_all)]
)
def test_postgresql_looks_at_no_more_than_it_answers(full, state):
    """Whatever PostgreSQL knows of the table, statements go by an index and touch few blocks."""
    if state == "analyzed":
        execute(full, "ANALYZE")
    for name in [*FEEDS, "by expression"]:
        for statement, parameters, rows in distinct(asked(full, name)):
            plans = plans_on_postgresql(full, statement, parameters)
            for mode, plan in plans.items():
                kinds = {node["Node Type"] for node in nodes(plan) if "Relation Name" in node}
                about = f"{name}, {state}, {mode}: {statement} {parameters} {plan}"
                assert kinds <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, about
                blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
                lookups = statement.count("LIMIT")
                assert blocks <= 8 * rows + 40 * lookups + 40, about


@pytest.mark.parametrize("full", ["mariadb"], indirect=True)
def test_mariadb_looks_at_no_more_than_it_answers(full):
    """MariaDB reads hardly more rows and entries of indexes than an answer has."""
    scalars(full, "ANALYZE TABLE events")
    single = sa.create_engine(full.url, pool_size=1, max_overflow=0)
    for name in FEEDS:
        bound = ready(single, name)
        for question, rows in questions(bound):
            with single.connect() as connection:
                before = rows_on_mariadb(connection)
            with noting(single) as seen:
                question()
            with single.connect() as connection:
                read = rows_on_mariadb(connection) - before
            lookups = sum(statement.count("LIMIT") for statement, _ in seen)
            assert read <= 6 * rows + 220 * lookups + 1_000, f"{name}: {read} for {seen}"
    single.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("full", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "state",
    [pytest.param("never analyzed", marks=pytest.mark.test_all), "analyzed when it was small"],
)
def test_sqlite_looks_at_no_more_than_it_answers(full, state):
    """SQLite searches by an index, and takes few steps."""
    if state == "analyzed when it was small":
        small = "UPDATE sqlite_stat1 SET stat = CASE WHEN idx LIKE '%time' THEN '10 9 1 1' "
        small += "WHEN idx IS NULL THEN '10' ELSE '10 9 1' END WHERE tbl = 'events'"
        execute(full, "ANALYZE", small)
    full.dispose()
    for name in [*FEEDS, "by expression"]:
        for statement, parameters, rows in distinct(asked(full, name)):
            path = full.url.database
            steps, plan = steps_on_sqlite(path, statement, parameters)
            about = f"{name}, {state}: {steps} steps: {statement} {parameters} {plan}"
            lookups = statement.count("LIMIT")
            assert steps <= 60 * rows + 6_000 * lookups + 3_000, about


def test_threads_that_read_at_once_get_each_event_once(sqlite, monkeypatch):
    """Statements that several threads build at once read the table by the index alone.

    SQLAlchemy stores what it finds out in two steps, between which the others get time here.
    """
    stored = HasMemoized.memoized_attribute
    found = stored.__get__

    def slowly(self, element, owner):
        if element is None or self.__name__ != "clauses":
            return found(self, element, owner)
        element.__dict__[self.__name__] = value = self.fget(element)
        time.sleep(0.02)
        element._memoized_keys |= {self.__name__}  # noqa: SLF001 - the second step
        return value

    monkeypatch.setattr(stored, "__get__", slowly)
    shop.fill(sqlite, 6, partitions=2)
    columns = {"data": "data", "partition": "part", "type": "kind"}
    feed = TableFeed(shop.orders, partitions=2, **columns).bind(sqlite)
    placed, ready = TypeFilter(frozenset({"placed"})), threading.Barrier(6)

    def read(number):
        ready.wait()
        time.sleep(0.004 * number)
        return len(feed.read(number % 2, FIRST, 10, types=placed).events)

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(read, range(6))] == [3] * 6
