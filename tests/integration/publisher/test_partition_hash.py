"""The hash of a key: what it takes, and that it is the same in Python and on every database."""

import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa
from harness.statements import add
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.orm import declarative_base

from zeroeventhub import FIRST, Retention, TableFeed
from zeroeventhub.databases.sqlite import register
from zeroeventhub.errors import ConfigurationError, Trimmed
from zeroeventhub.partitions import Layout, key_hash
from zeroeventhub.publisher.partition_hash import (
    hash_on_connect,
    layout_expression,
    outside,
    partition_expression,
    partition_of,
)

NAMES = [
    *("", " ", "ada", "Ada", "ada ", " ada", "ada  ", "\t\n", "1", "01", "-1"),
    *("'", '"', "\\", "\\x41", "\\'", "%", "%s", "%%", ":name", "?", "$1", "{}", ";--", "/* */"),
    *("é", "e\u0301", "ß", "İ", "ǆ", "漢字", "\u202e\ufeff\uffff", "\U0001f600\U0010ffff"),
    "x" * 5000,
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NUMBERS = st.integers(-(2**63), 2**63 - 1)
UTF8MB4 = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
BESIDE_A_DATABASE = settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

keys = sa.Table(
    "keys",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("number", sa.BigInteger),
    sa.Column("part", sa.Integer),
    sqlite_autoincrement=True,
    **UTF8MB4,
)


@pytest.mark.parametrize("partitions", [0, -1, 2**32 + 1])
def test_number_of_partitions_is_checked(partitions):
    """The number of partitions has to be 1 to 2**32."""
    for ask, key in ((partition_of, "a"), (partition_expression, sa.column("a", sa.Text))):
        with pytest.raises(ConfigurationError, match="1 or more"):
            ask(key, partitions)


@pytest.mark.parametrize(
    "kind",
    [
        *(sa.CHAR(36), sa.Enum("a", "b"), sa.Float(), sa.JSON(), sa.LargeBinary(), sa.Uuid()),
        *(mysql.VARBINARY(10), postgresql.ARRAY(sa.Integer)),
    ],
    ids=repr,
)
def test_columns_of_other_types_are_refused(kind):
    """A column whose text differs between databases is refused, with a hint what to do."""
    with pytest.raises(ConfigurationError, match=r"cast\(|text or a whole number"):
        partition_expression(sa.column("a", kind), 4)


def test_mapped_attribute_is_a_column():
    """The key may be an attribute of an ORM class."""

    class Order(declarative_base()):
        __tablename__ = "orders"
        id = sa.Column(sa.Integer, primary_key=True)

    by_hash = partition_expression(Order.id, 4)
    assert "orders.id" in str(by_hash.compile(dialect=postgresql.dialect()))
    assert layout_expression(Layout.of(2), written=Order.id) is not None


def test_sqlite3_connection_is_given_the_hash():
    """A connection of the sqlite3 module computes the hash once it is registered."""
    with closing(sqlite3.connect(":memory:")) as connection:
        register(connection)
        found = connection.execute("SELECT zeroeventhub_hash('ada'), zeroeventhub_hash(NULL)")
        assert found.fetchone() == (key_hash("ada"), None)


def test_layout_expression_asks_for_what_it_needs():
    """The error names the argument that a layout needs."""
    key, written = sa.column("customer", sa.Text), sa.column("part", sa.Integer)
    with pytest.raises(ConfigurationError, match="Give the key"):
        layout_expression(Layout.of(2))
    split = Layout.of(2).split(0, into=2)
    with pytest.raises(ConfigurationError, match="was split"):
        layout_expression(split, key=key)
    assert layout_expression(split, written=written) is written
    with pytest.raises(ConfigurationError, match="redistributed"):
        layout_expression(split.redistribute(by=2), written=written)


@pytest.fixture
def hashing(engine):
    """An engine of each database, used before it is given the hash, with an empty table of keys."""
    with engine.connect():
        pass
    for _ in range(2):
        hash_on_connect(engine)
    keys.metadata.create_all(engine)
    return engine


def computed(connection, column, values, partitions):
    """Insert keys, and return the partition that the database finds for each."""
    connection.execute(sa.insert(keys), [{column: value} for value in values])
    expression = partition_expression(keys.c[column], partitions)
    return list(connection.scalars(sa.select(expression).order_by(keys.c.id)))


def assert_read_by(index, connection, table, condition):
    """Show that a page is read by an index, as it is in a table of millions of rows."""
    database = connection.dialect.name
    if database == "postgresql":
        connection.execute(sa.text("SET enable_seqscan = off"))
        connection.execute(sa.text("SET enable_bitmapscan = off"))
    query = sa.select(table.c.id).where(condition, table.c.id > 0).order_by(table.c.id).limit(5)
    statement = query.compile(connection.engine, compile_kwargs={"literal_binds": True})
    word = "EXPLAIN QUERY PLAN" if database == "sqlite" else "EXPLAIN"
    plan = str(connection.exec_driver_sql(f"{word} {statement}").all())
    assert index in plan
    assert "Sort" not in plan


def test_feed_that_divides_by_a_hash_is_trimmed(hashing):
    """A feed without a column of partitions has retention, and refuses a trimmed cursor."""
    with hashing.begin() as connection:
        connection.execute(sa.insert(keys), [{"name": str(number)} for number in range(40)])
    partition = partition_expression(keys.c.name, 2)
    assert str(partition) == "remainder(hash(keys.name), 2)"
    feed = TableFeed(keys, partition=partition, partitions=2, data=["name"], retention=Retention())
    with hashing.begin() as connection:
        feed.install(connection)
    bound = feed.bind(hashing)
    trimmed = bound.read(0, FIRST, 5).cursor
    assert bound.trim(bound.plan_trim(below=21)) == 20
    with pytest.raises(Trimmed):
        bound.read(0, trimmed, 10)


@BESIDE_A_DATABASE
@given(
    st.lists(TEXTS, min_size=1, max_size=40),
    st.lists(NUMBERS, min_size=1, max_size=40),
    st.sampled_from([1, 16, 1000, 2**32]),
)
@example(NAMES, [0, -1, 9, 10, 2**31, -(2**63), 2**63 - 1], 2**32)
def test_key_has_one_hash(hashing, names, numbers, partitions):
    """Python and the database find the same partition for any text and any number of 64 bits."""
    for column, values in (("name", names), ("number", numbers)):
        with hashing.connect() as connection:
            found = computed(connection, column, values, partitions)
            connection.rollback()
        assert found == [partition_of(value, partitions) for value in values]


def test_event_without_a_key_is_outside_of_all_partitions(hashing):
    """A NULL key has a NULL partition; `outside` finds those and other partitions."""
    parts = [None, -1, *range(6)]
    with hashing.connect() as connection:
        assert computed(connection, "name", [None], 4) == [None]
        connection.execute(sa.insert(keys), [{"name": "ada", "part": part} for part in parts])
        lost = sa.or_(*outside(partition_expression(keys.c.name, 4), range(4)))
        assert list(connection.scalars(sa.select(keys.c.name).where(lost))) == [None]
        for ids in ({0}, {1, 3}, {0, 1, 2, 5}):
            query = sa.select(keys.c.part).where(
                keys.c.name == "ada", sa.or_(*outside(keys.c.part, ids))
            )
            found = list(connection.scalars(query.order_by(keys.c.id)))
            assert found == [part for part in parts if part not in ids]


def test_generated_column_holds_the_partition(hashing):
    """A generated column is filled by the database, and a feed reads by its index."""
    name = sa.Column("name", sa.Text().with_variant(mysql.VARCHAR(700), "mysql", "mariadb"))
    computed = sa.Computed(partition_expression(name, 4), persisted=True)
    part = sa.Column("part", sa.Integer, computed)
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    key = sa.Column("id", key, primary_key=True)
    index = sa.Index("by_part", part, key)
    more = {"sqlite_autoincrement": True, **UTF8MB4}
    orders = sa.Table("orders", sa.MetaData(), key, name, part, index, **more)
    orders.create(hashing)
    names = [name for name in NAMES if len(name) < 700]
    with hashing.begin() as connection:
        connection.execute(sa.insert(orders), [{"name": name} for name in names])
        assert_read_by("by_part", connection, orders, orders.c.part == 3)
    feed = TableFeed(orders, partition="part", partitions=4, data=["name"]).bind(hashing)
    for partition in range(4):
        found = [event.data["name"] for event in feed.read(partition, FIRST, 100).events]
        assert found == [name for name in names if partition_of(name, 4) == partition]
    # Or from the expression itself, without a column.
    expression = partition_expression(orders.c.name, 4)
    feed = TableFeed(orders, partition=expression, partitions=4, data=["name"]).bind(hashing)
    assert [event.data["name"] for event in feed.read(3, FIRST, 100).events] == found


@pytest.mark.parametrize(
    ("charset", "connected", "names"),
    [("utf16", "utf8mb4", NAMES), ("cp1251", "latin1", ["", "привет", "Ада "])],
    ids=["utf16", "cp1251"],
)
def test_character_set_does_not_matter(mariadb_url, mariadb, charset, connected, names):
    """Text of any character set and collation is hashed by its UTF-8, over any connection."""
    collation = f"{charset}_general_ci"
    name = sa.Column("name", mysql.VARCHAR(5000, charset=charset, collation=collation))
    part = sa.Column(
        "part", sa.BigInteger, sa.Computed(partition_expression(name, 2**32), persisted=True)
    )
    key = sa.Column("id", sa.BigInteger, primary_key=True)
    table = sa.Table("texts", sa.MetaData(), key, name, part, **UTF8MB4)
    reading = sa.create_engine(mariadb_url, connect_args={"charset": connected})
    # The expression is written down over one connection and computed over others.
    table.metadata.create_all(reading)
    add(mariadb, table, [{"name": name} for name in names])
    with reading.begin() as connection:
        query = sa.select(partition_expression(name, 2**32), part).order_by(key)
        found = [tuple(row) for row in connection.execute(query)]
        connection.execute(sa.insert(table).from_select(["name"], sa.select(name).order_by(key)))
        again = list(connection.scalars(sa.select(part).order_by(key)))
    reading.dispose()
    assert found == [(key_hash(name), key_hash(name)) for name in names]
    assert again == [key_hash(name) for name in names] * 2


@BESIDE_A_DATABASE
@given(st.randoms(use_true_random=False))
def test_layout_shows_events_where_it_says(hashing, dice):
    """The database finds each event in the partition that Python does, after any changes."""
    layout, written = Layout.of(dice.randint(1, 3)), []
    for _ in range(5):
        written += [(name, layout.partition_of(name)) for name in NAMES]
        change = dice.choice(["split", "split", "redistribute", "drop"])
        closed = [share.id for share in layout.partitions if share.closed]
        if change == "split":
            layout = layout.split(layout.partition_of(dice.choice(NAMES)), into=dice.randint(1, 3))
        elif change == "redistribute":
            layout = layout.redistribute(by=dice.randint(2, 3))
        elif closed:
            layout = layout.drop(dice.choice(closed))
    with hashing.connect() as connection:
        connection.execute(
            sa.insert(keys), [{"name": name, "part": part} for name, part in written]
        )
        shown = layout_expression(layout, key=keys.c.name, written=keys.c.part)
        found = list(connection.scalars(sa.select(shown).order_by(keys.c.id)))
        lost = sa.select(keys.c.id).where(sa.or_(*outside(shown, layout.ids)))
        assert not connection.execute(lost).all()
        connection.rollback()
    assert found == [
        share.id
        for name, part in written
        for share in layout.heirs(part)
        if share.holds(key_hash(name))
    ]
