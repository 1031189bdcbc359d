"""What a feed relies on: columns, an order, an index, and rows that nothing updates."""

from contextlib import suppress
from functools import partial
from uuid import uuid4

import pytest
from harness.engines import connected
from harness.published import published
from harness.shop import metadata, orders, place, write
from harness.statements import execute
from harness.tables import event_table
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    Numeric,
    String,
    Text,
    UniqueConstraint,
    func,
    text,
)

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError, Diverged, FeedFailure
from zeroeventhub.publisher import checks

FUNCTION = """CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RETURN NEW; END $$"""
TRIGGERS = {
    "postgresql": "CREATE TRIGGER touch BEFORE UPDATE ON orders EXECUTE FUNCTION touch()",
    "sqlite": "CREATE TRIGGER touch AFTER UPDATE ON orders BEGIN SELECT 1; END",
    "mysql": "CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW SET NEW.kind = 'x'",
    "mariadb": "CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW SET NEW.kind = 'x'",
}


def warnings(feed, subject="updates"):
    """Return what a feed's check warns of, about a subject."""
    return [one.sentence for one in feed.check() if one.subject == subject]


@pytest.mark.parametrize("ordering", [None, "sequenced"], ids=["by default", "sequenced"])
def test_trigger_on_updates_is_a_warning(engine, ordering):
    """A trigger of the owner's for updates says that rows change; those of a feed do not."""
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", ordering=ordering)
    with engine.begin() as connection:
        source.install(connection)
        place(connection, 1)
    assert warnings(source.bind(engine)) == []
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(FUNCTION)
        connection.exec_driver_sql(TRIGGERS[engine.dialect.name])
    (sentence,) = warnings(source.bind(engine))
    assert "'touch'" in sentence
    assert "an update reaches no consumer" in sentence
    assert warnings(TableFeed(orders, data="data", mutable=True).bind(engine)) == []


def test_statistics_of_updates_are_a_warning(postgresql):
    """PostgreSQL counts the rows that were updated."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        place(connection, 3)
        connection.execute(text("UPDATE orders SET kind = 'other'"))
    execute(postgresql, "SELECT pg_stat_force_next_flush()", "SELECT 1")
    execute(postgresql, "SELECT 1")
    postgresql.dispose()
    (sentence,) = warnings(TableFeed(orders, data="data").bind(postgresql))
    assert "3 updated rows" in sentence


def test_policies_that_hide_rows_are_a_warning(postgresql):
    """Row-level security is a warning for a user that it applies to, who may read no event."""
    published(postgresql)
    write(postgresql, 3)
    role = f"reader_{uuid4().hex}"
    execute(postgresql, f"CREATE ROLE {role}", f"GRANT SELECT ON orders, orders_id_seq TO {role}")
    try:
        with connected(postgresql.url, options=f"-c role={role}") as engine:
            feed = TableFeed(orders, data="data").bind(engine)
            assert warnings(feed, "policies") == []
            execute(postgresql, "ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
            assert feed.read(0, FIRST, 10).events == []
            (sentence,) = warnings(feed, "policies")
            assert "events that its policies hide are left out" in sentence
        assert warnings(TableFeed(orders, data="data").bind(postgresql), "policies") == []
    finally:
        execute(postgresql, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_column_of_updates_is_a_warning(sqlite):
    """A model that notes when a row was updated is one of rows that change."""
    table = event_table("customers", Column("changed", DateTime, onupdate=func.now()))
    table.create(sqlite)
    (sentence,) = warnings(TableFeed(table).bind(sqlite))
    assert "'changed'" in sentence


def test_event_without_a_json_form_is_an_error(sqlite):
    """A check reads the first event of each partition, and names one that cannot be published."""
    metadata.create_all(sqlite)
    write(sqlite)
    insert = "INSERT INTO orders (part, kind, data) VALUES (1, 'order', {})"
    execute(sqlite, insert.format("'{no JSON'"))
    source = TableFeed(orders, data="data", partition="part", partitions=2)
    (found,) = [one for one in source.bind(sqlite).check() if one.subject == "events"]
    assert found.level == "error"
    assert found.sentence.startswith("The row at position 2 cannot be published")


def test_versions_that_may_be_the_same_are_refused(engine):
    """A key whose history could show one of two events is refused until its versions are unique."""
    versions = UniqueConstraint("name", "version")
    table = event_table("log", versions, name=String(9), version=Integer)
    bare = event_table("log", name=String(9), version=Integer)
    bare.create(engine)
    feed = TableFeed(table, data=["id"], key="name", version="version", key_history=True)
    with pytest.raises(ConfigurationError, match="unique index on 'name' and 'version'"):
        feed.bind(engine).read_key("a", 0, 9)
    (found,) = [one for one in feed.bind(engine).check() if one.subject == "versions"]
    assert found.level == "error"
    execute(engine, "CREATE UNIQUE INDEX versions ON log (name, version)")
    assert feed.bind(engine).read_key("a", 0, 9).events == []


@pytest.mark.parametrize(("kind", "is_warned_of"), [(Text, True), (DateTime, False)])
def test_time_that_is_no_timestamp_is_a_warning(sqlite, kind, is_warned_of):
    """A time by which no reader can start is a warning, which names its type."""
    table = event_table("customers", Column("at", kind))
    table.create(sqlite)
    found = TableFeed(table, time="at").bind(sqlite).check()
    sentences = [one.sentence for one in found if one.subject == "time"]
    assert [("TEXT" in one, "start at a time" in one) for one in sentences] == (
        [(True, True)] if is_warned_of else []
    )


_COPY = "id, part, kind, customer, placed, data"


def _rebuilt(part):
    """Give a column of SQLite another type, as its documentation says."""
    columns = f"part {part} NOT NULL DEFAULT 0, kind TEXT, customer VARCHAR(40), placed DATETIME"
    return [
        f"CREATE TABLE other (id INTEGER PRIMARY KEY AUTOINCREMENT, {columns}, data JSON)",
        f"INSERT INTO other ({_COPY}) SELECT {_COPY} FROM orders",
        "DROP TABLE orders",
        "ALTER TABLE other RENAME TO orders",
    ]


RETYPED = {
    "sqlite": (_rebuilt("TEXT"), _rebuilt("INTEGER")),
    "postgresql": (
        [
            "ALTER TABLE orders ALTER COLUMN part DROP DEFAULT",
            "ALTER TABLE orders ALTER COLUMN part TYPE text USING part::text",
        ],
        [
            "ALTER TABLE orders ALTER COLUMN part TYPE integer USING part::integer",
            "ALTER TABLE orders ALTER COLUMN part SET DEFAULT 0",
        ],
    ),
    "mariadb": (
        ["ALTER TABLE orders MODIFY part VARCHAR(20) NOT NULL DEFAULT '0'"],
        ["ALTER TABLE orders MODIFY part INTEGER NOT NULL DEFAULT 0"],
    ),
}

DRIFTS = {
    "a column renamed": (
        ["ALTER TABLE orders RENAME COLUMN customer TO client"],
        ["ALTER TABLE orders RENAME COLUMN client TO customer"],
    ),
    "the table renamed": (
        ["ALTER TABLE orders RENAME TO elsewhere"],
        ["ALTER TABLE elsewhere RENAME TO orders"],
    ),
}


def source(**options):
    """A feed over the columns of an order."""
    return TableFeed(orders, data=["id", "part", "customer"], **options)


def assert_fails_until_mended(engine, feed, break_, mend):
    """Show that a feed fails while something is broken, and that a cursor of before leads on."""
    write(engine, 5)
    cursor = feed.read(0, FIRST, 9).cursor
    break_()
    for _ in range(2):
        with pytest.raises((FeedFailure, ConfigurationError)) as failed:
            feed.read(0, cursor, 9)
    mend()
    with suppress(FeedFailure):  # a statement that was prepared may fail by itself
        feed.read(0, cursor, 9)
    write(engine, 5, first=5)
    assert [event.data["id"] for event in feed.read(0, cursor, 9).events] == [6, 7, 8, 9, 10]
    return str(failed.value)


@pytest.mark.parametrize("drift", DRIFTS)
def test_cursor_leads_on_when_the_schema_is_back(engine, drift):
    """The feed fails, and says why, while a column is another, and no cursor is lost for it."""
    metadata.create_all(engine)
    break_, mend = DRIFTS[drift]
    feed = source().bind(engine)
    said = assert_fails_until_mended(
        engine, feed, partial(execute, engine, *break_), partial(execute, engine, *mend)
    )
    if drift == "a column renamed":
        assert "no column 'customer'" in said


ORDERINGS = {
    "observed": ("ALTER SEQUENCE orders_id_seq CACHE 10", "ALTER SEQUENCE orders_id_seq CACHE 1"),
    "gated": (
        "ALTER TABLE orders DISABLE TRIGGER zeroeventhub_gate",
        "ALTER TABLE orders ENABLE ALWAYS TRIGGER zeroeventhub_gate",
    ),
    "sequenced": ("ALTER TABLE {} RENAME TO hid", "ALTER TABLE hid RENAME TO {}"),
}


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_cursor_leads_on_when_the_ordering_is_back(postgresql, monkeypatch, ordering):
    """What an ordering needs is missed at the next look at it, and the feed goes on with it."""
    monkeypatch.setattr(checks, "CHECK_INTERVAL", 0.0)
    feed = published(postgresql, ordering=ordering, data=["id"])
    table = TableFeed(orders, ordering=ordering).ordering("postgresql").source.table.name
    break_, mend = (partial(execute, postgresql, one.format(table)) for one in ORDERINGS[ordering])
    assert_fails_until_mended(postgresql, feed, break_, mend)


def test_feed_goes_on_without_its_index(engine):
    """Pages are read in another way once their index is gone, and by it when it is back."""
    metadata.create_all(engine)
    write(engine, 10, partitions=2)
    feed = source(partition="part", partitions=2).bind(engine)
    cursor = feed.read(1, FIRST, 2).cursor
    execute(engine, "DROP INDEX orders_by_part" + " ON orders" * (engine.dialect.name == "mariadb"))
    with suppress(FeedFailure):
        feed.read(1, cursor, 10)
    assert len(feed.read(1, cursor, 10).events) == 3
    assert feed.lag(1, cursor).events == feed.cursor_of_count(1, cursor, 9).events == 3
    execute(engine, "CREATE INDEX orders_by_part ON orders (part, id)")
    assert len(feed.read(1, cursor, 10).events) == 3


def test_form_that_changed_is_no_other_history(engine):
    """A cursor is good again when a column has its former type back, if its event is the same."""
    metadata.create_all(engine)
    write(engine, 3)
    feed = source().bind(engine)
    cursor = feed.read(0, FIRST, 3).cursor
    break_, mend = RETYPED[engine.dialect.name]
    engine.dispose()  # a statement that was prepared would fail by itself
    execute(engine, *break_)
    with pytest.raises(FeedFailure, match="'part' in table 'orders' has changed"):
        feed.read(0, cursor, 3)
    execute(engine, *mend)
    engine.dispose()
    assert feed.read(0, cursor, 3).caught_up
    execute(engine, "UPDATE orders SET customer = 'another'")
    with pytest.raises(Diverged):
        feed.read(0, cursor, 3)


@pytest.mark.parametrize(("options", "is_warned_of"), [({}, True), ({"nullable": False}, False)])
def test_id_that_may_be_null_is_a_warning(engine, options, is_warned_of):
    """An event without an id of its own has its position, which may be the id of another one."""
    table = event_table("letters", Column("number", Integer, unique=True, **options))
    table.create(engine)
    feed = TableFeed(table, id="number", cloudevents=True).bind(engine)
    execute(engine, table.insert().values(number=2))
    if is_warned_of:
        execute(engine, table.insert().values(number=None))
        assert [event.data["id"] for event in feed.read(0, FIRST, 9).events] == ["2", "2"]
    assert ["inbox" in one for one in warnings(feed, "id")] == ([True] * is_warned_of)
    assert warnings(TableFeed(table, id="id", cloudevents=True).bind(engine), "id") == []


def test_id_by_which_no_event_is_found_is_a_warning(engine):
    """An id of a type that HTTP feeds cannot look up is shown, and a warning names the type."""
    table = event_table("letters", Column("amount", Numeric(5, 1), nullable=False))
    table.create(engine)
    execute(engine, table.insert().values(amount=2.5))
    feed = TableFeed(table, id="amount", cloudevents=True).bind(engine)
    assert [event.data["id"] for event in feed.read(0, FIRST, 9).events] == ["2.5"]
    (sentence,) = warnings(feed, "id")
    assert "Numeric" in sentence
    assert "HTTP feeds" in sentence
