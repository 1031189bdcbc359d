"""Every query of a feed costs the same wherever it reads in a table of a million events."""

from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from harness.databases import new_database
from harness.million import (
    FEEDS,
    FEW,
    ROWS,
    feed,
    fill,
    nodes,
    noting,
    plans_on_postgresql,
    rows_on_mariadb,
    steps_on_sqlite,
)
from harness.shop import orders, place
from sqlalchemy import create_engine, event, text

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import BadCursor
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.publisher import page_query

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index"),
]

MOST = 16
"""With how many parameters a statement is looked at, of hundreds that pieces have."""

LIMIT = 100
WINDOW = 2_000
RARE = TypeFilter(frozenset({"rare"}), skip=False)
LATE = datetime.fromisoformat("2020-01-01T00:00:00+00:00") + timedelta(seconds=ROWS - FEW // 2)


def filled(url):
    """An engine of a database with a million events."""
    engine = create_engine(url)
    fill(engine)
    return engine


@pytest.fixture(scope="module")
def full_postgresql(postgresql_server_url):
    """A million events in PostgreSQL."""
    with new_database(postgresql_server_url) as url:
        engine = filled(url)
        yield engine
        engine.dispose()


@pytest.fixture(scope="module")
def full_mariadb(mariadb_server_url):
    """A million events in MariaDB."""
    with new_database(mariadb_server_url) as url:
        engine = filled(url)
        yield engine
        engine.dispose()


@pytest.fixture(scope="module")
def full_sqlite(tmp_path_factory):
    """A million events in SQLite."""
    engine = filled(f"sqlite:///{tmp_path_factory.mktemp('million') / 'million.db'}")
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
            yield lambda p=partition: bound.cursor_at(LATE, p), FEW
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
        for question, rows in questions(ready(engine, name)):
            seen.clear()
            question()
            all_seen.append((seen[:], rows))
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


STATES = ["never analyzed", "analyzed", "vacuumed"]


@pytest.mark.parametrize("state", STATES)
def test_postgresql_looks_at_no_more_than_it_answers(full_postgresql, state):
    """Whatever PostgreSQL knows of the table, prepared statements and others go by an index, sort
    nothing, and touch few blocks.
    """
    if state != "never analyzed":
        command = "ANALYZE" if state == "analyzed" else "VACUUM ANALYZE"
        with full_postgresql.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            connection.execute(text(command))
    for name in [*FEEDS, "by expression"]:
        for statement, parameters, rows in distinct(asked(full_postgresql, name)):
            plans = plans_on_postgresql(full_postgresql, statement, parameters)
            for mode, plan in plans.items():
                kinds = {node["Node Type"] for node in nodes(plan) if "Relation Name" in node}
                about = f"{name}, {state}, {mode}: {statement} {parameters} {plan}"
                assert kinds <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, about
                blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
                lookups = statement.count("LIMIT")
                assert blocks <= 8 * rows + 40 * lookups + 40, about


@pytest.mark.parametrize("state", ["never analyzed", "analyzed"])
def test_mariadb_looks_at_no_more_than_it_answers(full_mariadb, state):
    """MariaDB reads hardly more rows and entries of indexes than an answer has."""
    if state == "analyzed":
        with full_mariadb.begin() as connection:
            connection.execute(text("ANALYZE TABLE events")).close()
    single = create_engine(full_mariadb.url, pool_size=1, max_overflow=0)
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
            assert read <= 6 * rows + 220 * lookups + 1_000, f"{name}, {state}: {read} for {seen}"
    single.dispose()


@pytest.mark.parametrize("state", ["never analyzed", "analyzed when it was small", "analyzed"])
def test_sqlite_looks_at_no_more_than_it_answers(full_sqlite, state):
    """SQLite searches by an index, and takes few steps."""
    with full_sqlite.begin() as connection:
        if state != "never analyzed":
            connection.execute(text("ANALYZE"))
        if state == "analyzed when it was small":
            small = "UPDATE sqlite_stat1 SET stat = CASE WHEN idx LIKE '%time' THEN '10 9 1 1' "
            small += "WHEN idx IS NULL THEN '10' ELSE '10 9 1' END WHERE tbl = 'events'"
            connection.execute(text(small))
    full_sqlite.dispose()
    for name in [*FEEDS, "by expression"]:
        for statement, parameters, rows in distinct(asked(full_sqlite, name)):
            path = full_sqlite.url.database
            steps, plan = steps_on_sqlite(path, statement, parameters)
            about = f"{name}, {state}: {steps} steps: {statement} {parameters} {plan}"
            lookups = statement.count("LIMIT")
            assert steps <= 60 * rows + 6_000 * lookups + 3_000, about


def test_feed_plans_so_on_postgresql_and_nobody_else(postgresql):
    """What a feed reads is planned without sorting, and its host plans as it did before."""
    orders.create(postgresql)
    seen = []

    @event.listens_for(postgresql, "before_cursor_execute")
    def ask(connection, cursor, statement, *_):
        if "orders.data" in statement:
            with connection.connection.cursor() as other:
                names = ("enable_sort", "enable_seqscan")
                seen.extend(other.execute(f"SHOW {name}").fetchone()[0] for name in names)

    with postgresql.begin() as connection:
        place(connection, 3)
    TableFeed(orders, data="data").bind(postgresql).read(0, FIRST, 3)
    assert {*seen} == {"off"}
    with postgresql.connect() as connection:
        for name in ("enable_sort", "enable_seqscan"):
            assert connection.scalar(text(f"SHOW {name}")) == "on"
