"""Reading only events of certain types, or none of them, on every database."""

import sqlalchemy as sa
from harness.shop import orders
from harness.statements import add, execute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from zeroeventhub import FIRST, TableFeed, TypeFilter
from zeroeventhub.protocol import EVENT_TYPES, NOTHING
from zeroeventhub.publisher import page_query

KINDS = [
    *["Placed", "placed", "PLACED ", "pl\u00e5ced", "plac\u00e9d", "pla\u212aed", None, "", "paid"]
]
"""Types of events, of which `placed` names two; behind one is a space, in one a Kelvin sign."""

names = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=";*"), min_size=1
)


def write(engine, kinds, **values):
    """Append an event of each type, numbered by its place in the list."""
    rows = [{"kind": kind, "data": {"n": n}, **values} for n, kind in enumerate(kinds)]
    add(engine, orders, rows)


def fill(engine):
    """Let the empty table take any letters."""
    if engine.dialect.name == "mariadb":
        execute(engine, "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4")


def source(**options):
    """A feed over the orders, with their types."""
    return TableFeed(orders, **{"data": "data", "type": "kind", **options})


def fetch(feed, only=None, *, skip=None, cursor=FIRST, limit=1000, partition=0):
    """Read a page of certain types; return the numbers of its events, and the page."""
    types = TypeFilter(frozenset(skip or only), skip=skip is not None)
    page = feed.read(partition, cursor, limit, types=types)
    return [event.data["n"] for event in page.events], page


def test_only_the_case_of_ascii_letters_is_passed_over(shop, feed):
    """Neither accents nor spaces nor letters that only look like ASCII are passed over."""
    write(shop, KINDS)
    assert fetch(feed, {"placed"})[0] == [0, 1]
    assert fetch(feed, skip={"PLACED"})[0] == [2, 3, 4, 5, 6, 7, 8]
    for name in ("plaKed", "plaked", "%", "p_id"):
        assert fetch(feed, {name})[0] == []


def test_events_without_a_type_are_of_none_or_of_the_default(shop, feed):
    """NULL and empty types are the default of CloudEvents, and without an envelope no type."""
    write(shop, [None, "", " ", "placed", "ORDERS"])
    wrapped = source(cloudevents=True).bind(shop)
    assert fetch(feed, {"orders"})[0] == [4]
    assert fetch(feed, skip={"orders"})[0] == [0, 1, 2, 3]

    def found(**options):
        page = wrapped.read(0, FIRST, 10, types=TypeFilter(frozenset({"orders"}), **options))
        return [(event.data["type"], event.data["data"]["n"]) for event in page.events]

    assert found() == [("orders", 0), ("orders", 1), ("ORDERS", 4)]
    assert found(skip=True) == [(" ", 2), ("placed", 3)]


def test_page_looks_at_a_limited_number_of_rows(shop, feed, monkeypatch):
    """A page in search of a rare type ends after a number of rows, and says that there is more."""
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 10)
    write(shop, ["paid"] * 25 + ["placed"] + ["paid"] * 4)
    pages, cursor, caught_up = [], FIRST, False
    while not caught_up:
        numbers, page = fetch(feed, {"placed"}, cursor=cursor)
        cursor, caught_up = page.cursor, page.caught_up
        pages.append((numbers, cursor.split("-")[1], caught_up, page.full))
    assert pages == [([], "10", False, False), ([], "20", False, False), ([25], "30", True, False)]


def test_columns_of_text_alone_are_filtered(sqlite):
    """A feed announces the extension if its column holds types as they are sent."""
    kinds = [sa.String(40), sa.CHAR(4), sa.Text(), sa.Enum("a"), sa.Integer(), sa.JSON(), sa.Uuid()]
    columns = [sa.Column(f"c{number}", kind) for number, kind in enumerate(kinds)]
    table = sa.Table("odd", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), *columns)
    table.create(sqlite)
    feeds = [TableFeed(table, type=one.name, append_only=True).bind(sqlite) for one in columns]
    assert [EVENT_TYPES in feed.info().extensions for feed in feeds] == [True] * 3 + [False] * 4


# Filters by themselves.


few = st.frozensets(st.sampled_from(["a", "b", "c", "d"]), min_size=1)
filters = st.builds(TypeFilter, few, skip=st.booleans()) | st.just(NOTHING)


@given(filters, filters)
def test_joined_filters_let_through_what_both_do(one, other):
    """Two filters are one that lets through what both let through, also nothing."""
    joined = one.joined(other)
    assert joined == other.joined(one)
    for kind in ["a", "B", "c", "d", "e", "", "\u00e5"]:
        assert joined.lets_through(kind) is (one.lets_through(kind) and other.lets_through(kind))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.frozensets(names, min_size=1, max_size=5), st.booleans(), st.lists(names | st.text()), few
)
def test_database_chooses_as_the_filter_says(sqlite, chosen, skip, kinds, others):
    """What the database lets through is what the filter lets through, joined with others or not."""
    types = TypeFilter(frozenset(name[:256] for name in chosen), skip=skip)
    kinds = [kind for kind in (*kinds, *chosen, *map(str.swapcase, chosen)) if kind.isascii()]
    kinds = [kind for kind in kinds if "\0" not in kind]
    with sqlite.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS orders")
        connection.exec_driver_sql(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, part INTEGER, "
            "kind TEXT COLLATE RTRIM, customer TEXT, placed DATETIME, data JSON)"
        )
        connection.execute(insert(orders), [{"kind": kind, "data": {}} for kind in kinds])
    feed = TableFeed(orders, data=["kind"], type="kind").bind(sqlite)
    for one in (types, types.joined(TypeFilter(others)), NOTHING):
        found = [event.data["kind"] for event in feed.read(0, FIRST, 1000, types=one).events]
        assert found == [kind for kind in kinds if one.lets_through(kind)]
