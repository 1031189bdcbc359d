"""Reading only events of certain types, or none of them, on every database."""

import json

import httpx
import pytest
from harness.shop import metadata, orders
from harness.web import serving
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    CHAR,
    JSON,
    Column,
    Enum,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    create_engine,
    delete,
    insert,
    text,
)
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette

from zeroeventhub import FIRST, TableFeed, TypeFilter, feed_routes
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import NOTHING
from zeroeventhub.publisher import page_query

KINDS = [
    *["Placed", "placed", "PLACED ", "pl\u00e5ced", "plac\u00e9d", "pla\u212aed", None, "", "paid"]
]
"""Types of events, of which `placed` names two; behind one is a space, in one a Kelvin sign."""

names = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=";"), min_size=1
)


def write(engine, kinds, **values):
    """Append an event of each type, numbered by its place in the list."""
    rows = [{"kind": kind, "data": {"n": n}, **values} for n, kind in enumerate(kinds)]
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)


@pytest.fixture
def shop(engine):
    """An engine of a database with an empty table of orders."""
    metadata.create_all(engine)
    if engine.dialect.name == "mariadb":
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4"))
    return engine


def source(**options):
    """A feed over the orders, with their types."""
    return TableFeed(orders, **{"data": "data", "type": "kind", **options})


def fetch(feed, only=None, *, skip=None, cursor=FIRST, limit=1000, partition=0):
    """Read a page of certain types; return the numbers of its events, and the page."""
    types = TypeFilter(frozenset(skip or only), skip=skip is not None)
    page = feed.read(partition, cursor, limit, types=types)
    return [event.data["n"] for event in page.events], page


def read_all(feed, **options):
    """Read to the head; return all numbers."""
    numbers, cursor, caught_up = [], FIRST, False
    while not caught_up:
        more, page = fetch(feed, cursor=cursor, **options)
        numbers += more
        assert page.cursor != cursor or page.caught_up
        cursor, caught_up = page.cursor, page.caught_up
    return numbers


def test_requests_choose_types(sqlite):
    """A request names the types that it wants or those that it does not, in capitals or not."""
    metadata.create_all(sqlite)
    write(sqlite, ["placed", "paid", "sent", "placed", "lost"])
    with serving(Starlette(routes=feed_routes("/orders", source(), sqlite))) as url:
        assert "event-types" in httpx.get(f"{url}/orders").json()["extensions"]
        for query, numbers in [
            ("event-types=;sent;;Placed;", [0, 2, 3]),
            ("skip-event-types=pLaced;unknown", [1, 2, 4]),
            ("event-types=%27OR1=1--", []),
        ]:
            answer = httpx.get(f"{url}/orders/events?token=1&partition=0&cursor=_first&{query}")
            *events, checkpoint = map(json.loads, answer.text.splitlines())
            assert checkpoint["caughtUp"]
            assert checkpoint["cursor"].startswith("2-5-")
            assert [event["data"]["n"] for event in events] == numbers, query


def test_only_the_case_of_ascii_letters_is_passed_over(shop):
    """Neither accents nor spaces nor letters that only look like ASCII are passed over."""
    write(shop, KINDS)
    feed = source().bind(shop)
    assert fetch(feed, {"placed"})[0] == [0, 1]
    assert fetch(feed, skip={"PLACED"})[0] == [2, 3, 4, 5, 6, 7, 8]
    for name in ("plaKed", "plaked", "%", "p_id"):
        assert fetch(feed, {name})[0] == []


def test_events_without_a_type_are_of_none_or_of_the_default(shop):
    """NULL and empty types are the default of CloudEvents, and without an envelope no type."""
    write(shop, [None, "", " ", "placed", "ORDERS"])
    bare, wrapped = source().bind(shop), source(cloudevents=True).bind(shop)
    assert fetch(bare, {"orders"})[0] == [4]
    assert fetch(bare, skip={"orders"})[0] == [0, 1, 2, 3]

    def found(**options):
        page = wrapped.read(0, FIRST, 10, types=TypeFilter(frozenset({"orders"}), **options))
        return [(event.data["type"], event.data["data"]["n"]) for event in page.events]

    assert found() == [("orders", 0), ("orders", 1), ("ORDERS", 4)]
    assert found(skip=True) == [(" ", 2), ("placed", 3)]


def test_feed_whose_events_are_all_of_one_type_filters(any_engine):
    """Without a column of types, CloudEvents are all of the default type, and can be skipped."""
    metadata.create_all(any_engine)
    write(any_engine, ["placed", "paid"])
    feed = TableFeed(orders, data="data", cloudevents=True).bind(any_engine)
    types = TypeFilter(frozenset({"Orders"}))
    assert len(feed.read(0, FIRST, 10, types=types).events) == 2
    skipped = feed.read(0, FIRST, 10, types=TypeFilter(types.names, skip=True))
    assert (list(skipped.events), skipped.caught_up) == ([], True)


def test_page_looks_at_a_limited_number_of_rows(shop, monkeypatch):
    """A page in search of a rare type ends after a number of rows, and says that there is more."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 10)
    write(shop, ["paid"] * 25 + ["placed"] + ["paid"] * 4)
    feed = source().bind(shop)
    pages, cursor, caught_up = [], FIRST, False
    while not caught_up:
        numbers, page = fetch(feed, {"placed"}, cursor=cursor)
        cursor, caught_up = page.cursor, page.caught_up
        pages.append((numbers, cursor.split("-")[1], caught_up, page.full))
    assert pages == [
        ([], "10", False, False),
        ([], "20", False, False),
        ([25], "30", True, False),
    ]


def test_filter_holds_for_every_portion_of_a_page(any_engine):
    """A page that is read by several statements, the first for few rows, is filtered in each."""
    metadata.create_all(any_engine)
    write(any_engine, ["a", "b"] * 50)
    numbers, page = fetch(source().bind(any_engine), {"a"})
    assert (numbers, page.caught_up) == (list(range(0, 100, 2)), True)
    numbers, page = fetch(source().bind(any_engine), skip={"a"}, limit=30)
    assert (numbers, page.caught_up) == (list(range(1, 60, 2)), False)


@pytest.mark.parametrize("ordering", [None, "sequenced"], ids=["by default", "sequenced"])
def test_pages_of_certain_types_hold_each_event_once(shop, monkeypatch, ordering):
    """Whatever the size of pages, every event of the types that is there comes once."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 7)
    publisher = source(ordering=ordering, mutable=True, partition="part", partitions=2)
    with shop.begin() as connection:
        publisher.install(connection)
    kinds = ["a", "b", "b", "a", "c", None, "b", "b", "b", "b", "b", "b", "b", "b", "A", "a", "b"]
    # The rows of the other partition are none that a page looks at.
    rows = [
        {"kind": one, "part": part, "data": {"n": n}}
        for n, kind in enumerate(kinds)
        for one, part in ((kind, 1), ("a", 1), (kind, 0))
    ]
    with shop.begin() as connection:
        connection.execute(insert(orders), rows)
    feed = publisher.bind(shop)
    for limit in (1, 2, 6, 7, 8, 100):
        assert read_all(feed, only={"a"}, limit=limit) == [0, 3, 14, 15]
        assert read_all(feed, skip={"b"}, limit=limit) == [0, 3, 4, 5, 14, 15]
    with shop.begin() as connection:
        connection.execute(delete(orders).where(orders.c.id.in_([3, 6, 12, 51])))
    for limit in (1, 2, 100):
        assert read_all(feed, only={"a"}, limit=limit) == [14, 15]
        assert read_all(feed, skip={"b"}, limit=limit) == [4, 5, 14, 15]


def test_feed_without_types_takes_no_notice(sqlite):
    """A feed that does not know types does not announce the extension, and sends everything."""
    metadata.create_all(sqlite)
    write(sqlite, ["placed", "paid"])
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite)
    with serving(Starlette(routes=routes)) as url:
        assert "event-types" not in httpx.get(f"{url}/orders").json()["extensions"]
        asked = {"token": "1", "partition": 0, "cursor": FIRST, "event-types": "paid"}
        assert httpx.get(f"{url}/orders/events", params=asked).text.count('"data":') == 2


def test_columns_of_text_alone_are_filtered(sqlite):
    """A feed announces the extension if its column holds types as they are sent."""
    table = Table("odd", MetaData(), Column("id", Integer, primary_key=True))
    kinds = [String(40), Text(), CHAR(4), Enum("a", "b"), Integer(), JSON(), Uuid()]
    for number, kind in enumerate(kinds):
        table.append_column(Column(f"c{number}", kind))
    table.metadata.create_all(sqlite)
    filtered = [
        "event-types"
        in TableFeed(table, type=f"c{n}", append_only=True).bind(sqlite).info().extensions
        for n in range(len(kinds))
    ]
    assert filtered == [True, True, True, False, False, False, False]
    with pytest.raises(ConfigurationError):
        TableFeed(table, type="missing")


# Filters by themselves.


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a;b", ";", "a\n", "\ta", "\x7f", "\u00e5", "\u212a", "\u0130", "x" * 257],
    ids=lambda name: ascii(name[:9]),
)
def test_name_that_no_request_could_say_is_refused(name):
    """A name has 1 to 256 printable ASCII characters, without spaces and semicolons."""
    with pytest.raises(ConfigurationError):
        TypeFilter(frozenset({"placed", name}))


def test_filters_that_differ_in_case_are_the_same():
    """Filters that differ in the case of letters are equal, those of other ways are not, and one
    without names is none.
    """
    one, other = TypeFilter(frozenset({"Placed", "P"})), TypeFilter(frozenset({"placed", "p"}))
    assert (one, hash(one)) == (other, hash(other))
    assert TypeFilter(one.names, skip=True) != one
    with pytest.raises(ConfigurationError, match="at least one"):
        TypeFilter(frozenset())


few = st.frozensets(st.sampled_from(["a", "b", "c", "d"]), min_size=1)
filters = st.builds(TypeFilter, few, skip=st.booleans()) | st.just(NOTHING)


@given(filters, filters)
def test_joined_filters_let_through_what_both_do(one, other):
    """Two filters are one that lets through what both let through, also nothing."""
    joined = one.joined(other)
    assert joined == other.joined(one)
    for kind in ["a", "B", "c", "d", "e", "", "\u00e5"]:
        assert joined.lets_through(kind) is (one.lets_through(kind) and other.lets_through(kind))


@pytest.fixture(scope="module")
def memory():
    """An SQLite database in memory with a table whose types are compared without spaces."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, part INTEGER, "
            "kind TEXT COLLATE RTRIM, customer TEXT, placed DATETIME, data JSON)"
        )
    yield engine
    engine.dispose()


@settings(max_examples=50)
@given(
    st.frozensets(names, min_size=1, max_size=5), st.booleans(), st.lists(names | st.text()), few
)
def test_database_chooses_as_the_filter_says(memory, chosen, skip, kinds, others):
    """What the database lets through is what the filter lets through, joined with others or not."""
    types = TypeFilter(frozenset(name[:256] for name in chosen), skip=skip)
    kinds = [kind for kind in (*kinds, *chosen, *map(str.swapcase, chosen)) if kind.isascii()]
    kinds = [kind for kind in kinds if "\0" not in kind]
    with memory.begin() as connection:
        connection.execute(delete(orders))
        connection.execute(insert(orders), [{"kind": kind, "data": {}} for kind in kinds])
    feed = TableFeed(orders, data=["kind"], type="kind").bind(memory)
    for one in (types, types.joined(TypeFilter(others)), NOTHING):
        found = [event.data["kind"] for event in feed.read(0, FIRST, 1000, types=one).events]
        assert found == [kind for kind in kinds if one.lets_through(kind)]
