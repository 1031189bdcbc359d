"""The hash of a key: what it takes, and how engines are given it."""

import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    CHAR,
    JSON,
    NCHAR,
    Boolean,
    Column,
    Date,
    Enum,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    Unicode,
    Uuid,
    column,
    create_engine,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects import mssql, mysql, postgresql
from sqlalchemy.orm import declarative_base

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.layout import Layout, key_hash
from zeroeventhub.publisher.partition_hash import (
    hash_on_connect,
    layout_expression,
    outside,
    partition_expression,
    partition_of,
    register,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**64 - 1)


@given(TEXTS | NUMBERS, st.integers(1, 2**32))
def test_partition_is_a_remainder(key, partitions):
    """Every key has a partition among those that there are."""
    assert partition_of(key, partitions) == key_hash(key) % partitions
    assert partition_of(key, 1) == 0


@pytest.mark.parametrize("key", [None, True, 1.0, b"a", ("a",), "\ud800"])
def test_what_is_no_key_is_refused(key):
    """Only text that has a UTF-8 and whole numbers have a hash."""
    with pytest.raises(ConfigurationError, match="key"):
        partition_of(key, 4)


@pytest.mark.parametrize("partitions", [0, -1, 2**32 + 1])
def test_number_of_partitions_is_checked(partitions):
    """There is no partition of none."""
    for ask in (partition_of, partition_expression):
        with pytest.raises(ConfigurationError, match="1 or more"):
            ask("a", partitions) if ask is partition_of else ask(column("a", Text), partitions)


@pytest.mark.parametrize(
    "kind",
    [
        *(Boolean(), CHAR(36), NCHAR(3), Date(), Enum("a", "b"), Float(), JSON(), LargeBinary()),
        *(Numeric(10, 0), Uuid(), mysql.ENUM("a"), mysql.VARBINARY(10), postgresql.BYTEA()),
        *(postgresql.ARRAY(Integer), postgresql.ENUM("a", name="letter")),
    ],
    ids=repr,
)
def test_columns_of_other_types_are_refused(kind):
    """A column that has no text, or not the same everywhere, is refused with what to do."""
    with pytest.raises(ConfigurationError, match=r"cast\(|text or a whole number"):
        partition_expression(column("a", kind), 4)


@pytest.mark.parametrize("what", ["customer", None, 5])
def test_key_is_a_column(what):
    """What is not a column or an expression is refused, and a name is not taken for a key."""
    with pytest.raises(ConfigurationError, match="neither a column nor"):
        partition_expression(what, 4)


@pytest.mark.parametrize(
    "kind", [String(9), Text(), Unicode(), SmallInteger(), mysql.LONGTEXT(), postgresql.CITEXT()]
)
def test_other_databases_are_refused(kind):
    """A database that the feed does not know is refused by name."""
    with pytest.raises(ConfigurationError, match="mssql"):
        partition_expression(column("a", kind), 4).compile(dialect=mssql.dialect())


def test_mapped_attribute_is_a_column():
    """The key may be an attribute of an ORM class."""
    base = declarative_base()

    class Order(base):
        __tablename__ = "orders"
        id = Column(Integer, primary_key=True)
        customer = Column(String(40))

    assert "orders.customer" in str(
        partition_expression(Order.customer, 4).compile(dialect=postgresql.dialect())
    )
    assert layout_expression(Layout.of(2), written=Order.id) is not None


def test_expressions_are_cached_by_what_they_are():
    """SQLAlchemy's cache of statements does not take one number of partitions for another."""
    engine = create_engine("sqlite://")
    hash_on_connect(engine)
    with engine.connect() as connection:
        for partitions in [4, 8, 1000, 4, 1000, 8]:
            for key in ["ada", "bob"]:
                query = select(partition_expression(literal(key), partitions))
                assert connection.scalar(query) == partition_of(key, partitions)
    engine.dispose()


def test_sqlite3_connection_is_given_the_hash():
    """A connection of the sqlite3 module computes the hash once it is registered."""
    with closing(sqlite3.connect(":memory:")) as connection:
        register(connection)
        found = connection.execute("SELECT zeroeventhub_hash('ada'), zeroeventhub_hash(NULL)")
        assert found.fetchone() == (key_hash("ada"), None)


def test_connections_of_the_pool_are_given_the_hash(tmp_path):
    """An engine that has been used already gives the hash to connections of its pool as well."""
    engine = create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    with engine.connect():
        pass
    for _ in range(2):
        hash_on_connect(engine)
    query = select(partition_expression(column("name", Text), 16)).select_from(
        Table("sqlite_master", MetaData(), Column("name", Text))
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id integer)")
        assert connection.scalar(query) == partition_of("orders", 16)
    engine.dispose()


def test_layout_expression_asks_for_what_it_needs():
    """A layout says what it lacks to find the partition of an event."""
    key, written = column("customer", Text), column("part", Integer)
    with pytest.raises(ConfigurationError, match="Give the key"):
        layout_expression(Layout.of(2))
    split = Layout.of(2).split(0, into=2)
    with pytest.raises(ConfigurationError, match="was split"):
        layout_expression(split, key=key)
    assert layout_expression(split, written=written) is written
    with pytest.raises(ConfigurationError, match="redistributed"):
        layout_expression(split.redistribute(by=2), written=written)


@given(st.sets(st.integers(0, 30), min_size=1), st.lists(st.none() | st.integers(-5, 40)))
def test_outside_finds_events_of_no_partition(ids, partitions):
    """What is outside is what is not among the ids, and what is NULL."""
    table = Table(
        "events", MetaData(), Column("id", Integer, primary_key=True), Column("part", Integer)
    )
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        table.create(connection)
        for partition in partitions:
            connection.execute(table.insert().values(part=partition))
        found = list(
            connection.scalars(select(table.c.part).where(or_(*outside(table.c.part, ids))))
        )
    engine.dispose()
    assert Counter(found) == Counter(part for part in partitions if part not in ids)
