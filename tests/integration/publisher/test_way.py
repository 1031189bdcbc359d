"""Every query of a feed costs the same wherever it reads in a table of many events."""

from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from harness.databases import new_database
from harness.million import (
    FEEDS,
    FEW,
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

from zeroeventhub import FIRST, LAST, TableFeed, TypeFilter
from zeroeventhub.errors import BadCursor
from zeroeventhub.publisher import page_query

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index"),
]

MOST = 16
"""With how many parameters a statement is looked at, of hundreds that pieces have."""

LIMIT = 10
WINDOW = 200
RARE = TypeFilter(frozenset({"rare"}))
ROWS = [20_000, pytest.param(1_000_000, marks=pytest.mark.test_all)]
"""In how many events a query that reads too many is seen at once, and as many as hosts have."""


@contextmanager
def filled(url, rows):
    """Yield an engine of a database with many events, and how many."""
    engine = create_engine(url)
    fill(engine, rows)
    yield engine, rows
    engine.dispose()


@pytest.fixture(scope="module", params=ROWS)
def full_postgresql(request, postgresql_server_url):
    """Many events in PostgreSQL."""
    with new_database(postgresql_server_url) as url, filled(url, request.param) as found:
        yield found


@pytest.fixture(scope="module", params=ROWS)
def full_mariadb(request, mariadb_server_url):
    """Many events in MariaDB."""
    with new_database(mariadb_server_url) as url, filled(url, request.param) as found:
        yield found


@pytest.fixture(scope="module", params=ROWS)
def full_sqlite(request, tmp_path_factory):
    """Many events in SQLite."""
    url = f"sqlite:///{tmp_path_factory.mktemp('many') / 'many.db'}"
    with filled(url, request.param) as found:
        yield found


@pytest.fixture(autouse=True)
def small_window(monkeypatch):
    """A filtered page looks at fewer rows, so that looking at too many is seen at once."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", WINDOW)


def questions(bound, rows):
    """Everything that can be asked of a feed, and how many rows an answer may look at."""
    places = {
        position: bound.cursor_after(position)
        for position in (rows // 2, rows - 5 * FEW, rows - FEW, rows)
    }
    late = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=rows - FEW // 2)
    partitions = [each.id for each in bound.info().partitions]
    for partition in {partitions[0], *partitions[-2:]}:
        for cursor in (FIRST, *places.values()):
            yield lambda p=partition, c=cursor: bound.read(p, c, LIMIT), LIMIT
            yield lambda p=partition, c=cursor: bound.read(p, c, LIMIT, types=RARE), 2 * WINDOW
            yield lambda p=partition, c=cursor: bound.read(p, c, LIMIT, stop=places[rows]), LIMIT
        yield lambda p=partition: bound.lag(p, places[rows - 5 * FEW]), 5 * FEW
        for cursor in (FIRST, *places.values()):
            yield lambda p=partition, c=cursor: bound.cursor_of_count(p, c, LIMIT), LIMIT
        if "cursor-of-time" in bound.info().extensions:
            yield lambda p=partition: bound.cursor_at(late, p), FEW
    yield lambda: bound.read(partitions[0], LAST, LIMIT), 1
    yield lambda: bound.splits(partitions[0], 4), 210
    yield lambda: bound.splits(partitions[0], 4, start=places[rows - FEW]), 1_000
    yield bound.head, 1
    yield lambda: bound.cursor_after(rows // 2), 1
    yield lambda: found(bound, partitions[0], rows), 1


def found(bound, partition, rows):
    """Look for an event by its id, which need not be in the partition."""
    with suppress(BadCursor):
        bound.cursor_of(f"e{rows // 2}", partition)


def ready(engine, name):
    """A feed that has looked at its table; its strays were looked for as well."""
    bound = feed(name).bind(engine)
    bound.info()
    # The first pages say how large rows are.
    for _ in range(4):
        bound.read(0, FIRST, LIMIT)
    return bound


def asked(engine, rows, name):
    """Everything that a feed sends, from its first look at the table on, by question."""
    bound = feed(name).bind(engine)
    with noting(engine) as seen:
        bound.info()
        all_seen = [(seen[:], 1)]
        for question, read in questions(ready(engine, name), rows):
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


STATES = ["never analyzed", "analyzed", pytest.param("vacuumed", marks=pytest.mark.test_all)]


@pytest.mark.parametrize("state", STATES)
def test_postgresql_looks_at_no_more_than_it_answers(full_postgresql, state):
    """Whatever PostgreSQL knows of the table, prepared statements and others go by an index, sort
    nothing, and touch few blocks.
    """
    engine, size = full_postgresql
    if state != "never analyzed":
        command = "ANALYZE" if state == "analyzed" else "VACUUM ANALYZE"
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(command))
    for name in [*FEEDS, "by expression"]:
        for statement, parameters, rows in distinct(asked(engine, size, name)):
            plans = plans_on_postgresql(engine, statement, parameters)
            for mode, plan in plans.items():
                kinds = {node["Node Type"] for node in nodes(plan) if "Relation Name" in node}
                about = f"{name}, {state}, {mode}: {statement} {parameters} {plan}"
                assert kinds <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, about
                blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
                lookups = statement.count("LIMIT")
                assert blocks <= 8 * rows + 40 * lookups + 40, about


@pytest.mark.parametrize(
    "state", [pytest.param("never analyzed", marks=pytest.mark.test_all), "analyzed"]
)
def test_mariadb_looks_at_no_more_than_it_answers(full_mariadb, state):
    """MariaDB reads hardly more rows and entries of indexes than an answer has."""
    engine, size = full_mariadb
    if state == "analyzed":
        with engine.begin() as connection:
            connection.execute(text("ANALYZE TABLE events")).close()
    single = create_engine(engine.url, pool_size=1, max_overflow=0)
    for name in FEEDS:
        bound = ready(single, name)
        for question, rows in questions(bound, size):
            with single.connect() as connection:
                before = rows_on_mariadb(connection)
            with noting(single) as seen:
                question()
            with single.connect() as connection:
                read = rows_on_mariadb(connection) - before
            lookups = sum(statement.count("LIMIT") for statement, _ in seen)
            assert read <= 6 * rows + 220 * lookups + 1_000, f"{name}, {state}: {read} for {seen}"
    single.dispose()


@pytest.mark.parametrize(
    "state",
    [
        "never analyzed",
        "analyzed when it was small",
        pytest.param("analyzed", marks=pytest.mark.test_all),
    ],
)
def test_sqlite_looks_at_no_more_than_it_answers(full_sqlite, state):
    """SQLite searches by an index, and takes few steps."""
    engine, size = full_sqlite
    with engine.begin() as connection:
        if state != "never analyzed":
            connection.execute(text("ANALYZE"))
        if state == "analyzed when it was small":
            small = "UPDATE sqlite_stat1 SET stat = CASE WHEN idx LIKE '%time' THEN '10 9 1 1' "
            small += "WHEN idx IS NULL THEN '10' ELSE '10 9 1' END WHERE tbl = 'events'"
            connection.execute(text(small))
    engine.dispose()
    for name in [*FEEDS, "by expression"]:
        for statement, parameters, rows in distinct(asked(engine, size, name)):
            path = engine.url.database
            steps, plan = steps_on_sqlite(path, statement, parameters)
            about = f"{name}, {state}: {steps} steps: {statement} {parameters} {plan}"
            lookups = statement.count("LIMIT")
            assert steps <= 60 * rows + 6_000 * lookups + 3_000, about


def test_feed_plans_so_on_postgresql_and_its_host_does_not(postgresql):
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
