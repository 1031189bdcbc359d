"""The hash of a key is the same in Python and on every database."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    insert,
    literal,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import OperationalError

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.layout import Layout, key_hash
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
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

keys = Table(
    "keys",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("name", Text),
    Column("number", BigInteger),
    Column("part", Integer),
    sqlite_autoincrement=True,
    **UTF8MB4,
)


@pytest.fixture
def hashing(engine):
    """An engine of each database, with an empty table of keys."""
    hash_on_connect(engine)
    keys.metadata.create_all(engine)
    return engine


def computed(connection, column, values, partitions):
    """Insert keys, and return the partition that the database finds for each."""
    connection.execute(insert(keys), [{column: value} for value in values])
    expression = partition_expression(keys.c[column], partitions)
    return list(connection.scalars(select(expression).order_by(keys.c.id)))


def explain(connection, query):
    """Return the plan of a query as it stands in a table of millions of rows."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET enable_seqscan = off"))
        connection.execute(text("SET enable_bitmapscan = off"))
    statement = query.compile(connection.engine, compile_kwargs={"literal_binds": True})
    return str(connection.exec_driver_sql(f"EXPLAIN {statement}").all())


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


def test_parameter_has_one_hash(hashing):
    """A key may be a value that is handed to the database, with a NUL where it takes one."""
    nul = ["a\0b", "\0"] if hashing.dialect.name != "postgresql" else []
    with hashing.connect() as connection:
        for name in ("ada", "", "%s", "\\", *nul):
            query = select(partition_expression(literal(name), 1000))
            assert connection.scalar(query) == partition_of(name, 1000)


def test_event_without_a_key_has_no_partition(hashing):
    """Where the key is NULL so is the partition, which is outside of any."""
    with hashing.connect() as connection:
        assert computed(connection, "name", [None], 4) == [None]
        lost = or_(*outside(partition_expression(keys.c.name, 4), range(4)))
        assert len(connection.execute(select(keys.c.id).where(lost)).all()) == 1


def test_sqlite_without_the_function_says_so(sqlite):
    """A connection that was not given the hash fails; nothing is hashed in another way."""
    keys.metadata.create_all(sqlite)
    with sqlite.connect() as connection, pytest.raises(OperationalError, match="zeroeventhub_hash"):
        computed(connection, "name", ["ada"], 4)


@pytest.mark.anyio
async def test_async_engine_is_given_the_hash(async_engine):
    """An async engine computes the same numbers."""
    hash_on_connect(async_engine)
    async with async_engine.begin() as connection:
        await connection.run_sync(keys.metadata.create_all)
        await connection.execute(insert(keys), [{"name": name} for name in NAMES])
        query = select(partition_expression(keys.c.name, 1000)).order_by(keys.c.id)
        found = list(await connection.scalars(query))
    assert found == [partition_of(name, 1000) for name in NAMES]


def test_generated_column_holds_the_partition(hashing):
    """A stored generated column is filled by the database, and a feed reads by its index."""
    metadata = MetaData()
    name = Column("name", Text().with_variant(mysql.VARCHAR(700), "mysql", "mariadb"))
    part = Column("part", Integer, Computed(partition_expression(name, 4), persisted=True))
    orders = Table(
        "orders",
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        name,
        part,
        Index("orders_by_part", "part", "id"),
        sqlite_autoincrement=True,
        **UTF8MB4,
    )
    metadata.create_all(hashing)
    names = [name for name in NAMES if len(name) < 700]
    with hashing.begin() as connection:
        connection.execute(insert(orders), [{"name": name} for name in names])
        query = select(orders.c.id).where(orders.c.part == 3, orders.c.id > 0)
        if hashing.dialect.name != "sqlite":
            assert "orders_by_part" in explain(connection, query.order_by(orders.c.id).limit(5))
    feed = TableFeed(orders, partition="part", partitions=4, data=["name"]).bind(hashing)
    for partition in range(4):
        found = [event.data["name"] for event in feed.read(partition, FIRST, 100).events]
        assert found == [name for name in names if partition_of(name, 4) == partition]
    # Or from the expression itself, without a column.
    expression = partition_expression(orders.c.name, 4)
    feed = TableFeed(orders, partition=expression, partitions=4, data=["name"]).bind(hashing)
    assert [event.data["name"] for event in feed.read(3, FIRST, 100).events] == found


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_index_of_the_expression_is_read(database, request):
    """The database takes an index of the expression, and reads the pages of a feed by it."""
    engine = request.getfixturevalue(database)
    hash_on_connect(engine)
    metadata = MetaData()
    table = keys.to_metadata(metadata)
    layout = Layout.of(4).redistribute(by=4)
    expressions = {
        "keys_by_name": partition_expression(table.c.name, 16),
        "keys_by_number": partition_expression(table.c.number, 16),
        "keys_by_layout": layout_expression(layout, key=table.c.name),
    }
    for name, expression in expressions.items():
        Index(name, expression, table.c.id)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"name": name, "number": 5} for name in NAMES])
        for name, expression in expressions.items():
            query = select(table.c.id).where(expression == 7, table.c.id > 0).order_by(table.c.id)
            if database == "sqlite":
                statement = query.limit(5).compile(engine, compile_kwargs={"literal_binds": True})
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
            else:
                plan = explain(connection, query.limit(5))
            assert f"{name}" in str(plan)
            assert "Sort" not in str(plan)


def test_index_of_a_virtual_column_is_read_on_mariadb(mariadb):
    """MariaDB indexes the expression by way of a virtual column, which takes no room in rows."""
    metadata = MetaData()
    name = Column("name", String(700))
    part = Column("part", Integer, Computed(partition_expression(name, 16), persisted=False))
    key = Column("id", BigInteger, primary_key=True)
    table = Table("virtual", metadata, key, name, part, Index("by_part", part, key), **UTF8MB4)
    metadata.create_all(mariadb)
    with mariadb.begin() as connection:
        names = [name for name in NAMES if len(name) < 700]
        connection.execute(insert(table), [{"name": name} for name in names])
        query = select(table.c.id).where(table.c.part == 7, table.c.id > 0).order_by(table.c.id)
        assert "by_part" in explain(connection, query.limit(5))
        found = list(connection.scalars(select(table.c.part).order_by(table.c.id)))
    assert found == [partition_of(name, 16) for name in names]


SPELLINGS = {
    "latin1": ["", "ada", "Ada ", "é", "ß", "ÿ", "€", "'\\%"],
    "cp1251": ["", "привет", "Ада "],
}


@pytest.mark.parametrize(
    ("collation", "connected"),
    [
        *(("utf16_general_ci", "utf8mb4"), ("latin1_swedish_ci", "cp1251")),
        *(("cp1251_general_ci", "latin1"), ("utf8mb4_general_ci", "latin1")),
    ],
)
def test_character_set_does_not_matter(mariadb_url, mariadb, collation, connected):
    """Text of any character set and collation is hashed by its UTF-8, over any connection."""
    charset = collation.partition("_")[0]
    names = SPELLINGS.get(charset, NAMES)
    name = Column("name", mysql.VARCHAR(5000, charset=charset, collation=collation))
    part = Column("part", BigInteger, Computed(partition_expression(name, 2**32), persisted=True))
    key = Column("id", BigInteger, primary_key=True)
    table = Table("texts", MetaData(), key, name, part, **UTF8MB4)
    reading = create_engine(mariadb_url, connect_args={"charset": connected})
    # The expression is written down over one connection and computed over others.
    table.metadata.create_all(reading)
    with mariadb.begin() as connection:
        connection.execute(insert(table), [{"name": name} for name in names])
    with reading.begin() as connection:
        query = select(partition_expression(name, 2**32), part).order_by(key)
        found = [tuple(row) for row in connection.execute(query)]
        connection.execute(insert(table).from_select(["name"], select(name).order_by(key)))
        again = list(connection.scalars(select(part).order_by(key)))
    reading.dispose()
    assert found == [(key_hash(name), key_hash(name)) for name in names]
    assert again == [key_hash(name) for name in names] * 2


def test_leading_zeros_do_not_matter(mariadb):
    """A number that MariaDB shows with zeros in front is the number that it is."""
    number = Column("number", mysql.BIGINT(20, unsigned=True, zerofill=True))
    table = Table("numbers", MetaData(), Column("id", BigInteger, primary_key=True), number)
    table.metadata.create_all(mariadb)
    numbers = [0, 7, 2**63, 2**64 - 1]
    with mariadb.begin() as connection:
        connection.execute(insert(table), [{"number": number} for number in numbers])
        query = select(partition_expression(number, 2**32)).order_by(table.c.id)
        assert list(connection.scalars(query)) == [key_hash(number) for number in numbers]


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
        connection.execute(insert(keys), [{"name": name, "part": part} for name, part in written])
        shown = layout_expression(layout, key=keys.c.name, written=keys.c.part)
        found = list(connection.scalars(select(shown).order_by(keys.c.id)))
        lost = select(keys.c.id).where(or_(*outside(shown, layout.ids)))
        assert not connection.execute(lost).all()
        connection.rollback()
    assert found == [
        share.id
        for name, part in written
        for share in layout.heirs(part)
        if share.holds(key_hash(name))
    ]


def test_hash_alone_finds_events(hashing):
    """Without a stored partition, the hash finds all events of a key in one partition."""
    with hashing.begin() as connection:
        connection.execute(insert(keys), [{"name": name} for name in NAMES])
        for layout in (
            Layout.of(1),
            Layout.of(3).redistribute(by=2).redistribute(by=2),
            Layout.of(4).close(1).redistribute(by=2),
            Layout.of(4).close(1).drop(1).redistribute(by=2).redistribute(by=3),
        ):
            shown = layout_expression(layout, key=keys.c.name)
            found = list(connection.scalars(select(shown).order_by(keys.c.id)))
            shares = (*layout.partitions, *layout.dropped)
            expected = [s.id for name in NAMES for s in shares if s.holds(key_hash(name))]
            assert found == expected
