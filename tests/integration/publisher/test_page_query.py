"""What a page reads of a table: by its bytes, by types, and little of the rest."""

import json
import re
from itertools import accumulate

import pytest
import sqlalchemy as sa
from harness.engines import connected
from harness.published import published
from harness.shop import orders, write
from harness.statements import add, execute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, event, insert

from zeroeventhub import FIRST, TableFeed, TypeFilter
from zeroeventhub.errors import ConfigurationError, FeedFailure
from zeroeventhub.extensions import EVENT_TYPES
from zeroeventhub.protocol import NOTHING
from zeroeventhub.publisher import page_query, rows
from zeroeventhub.settings import Capacity

PAGE = 1_000


def pages(feed, limit, **options):
    """Read a feed to its end."""
    cursor = FIRST
    while True:
        page = feed.read(0, cursor, limit, **options)
        yield [event.raw for event in page.events], page.cursor, page.full, page.caught_up
        if page.caught_up:
            return
        cursor = page.cursor


def expected(rows, limit):
    """The pages of rows: as many as are wanted, or as have room, and always one."""
    while True:
        sums = accumulate(len(row) for row in rows)
        fit = sum(size <= PAGE for size in sums)
        page = rows[: min(limit, max(1, fit))]
        rows = rows[len(page) :]
        yield page
        if not rows:
            return


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(st.integers(2, 60), st.integers(200, 2_500)), min_size=1, max_size=60),
    st.integers(1, 30),
    st.booleans(),
)
def test_pages_hold_what_has_room(memory, sizes, limit, filtered):
    """A page has as many rows as are wanted, or as have room, and always one."""
    rows = [json.dumps("x" * (size - 2)) for size in sizes]
    with memory.begin() as connection:
        connection.execute(delete(orders))
        values = [{"data": json.loads(row), "kind": "placed"} for row in rows]
        if filtered:
            other = {"data": "of another type", "kind": "paid"}
            values = [row for value in values for row in (value, other)]
        connection.execute(insert(orders), values)
    options = {"types": TypeFilter(frozenset({"placed"}))} if filtered else {}
    feed = TableFeed(orders, data="data", type="kind").bind(memory, Capacity(page_bytes=PAGE))
    wanted = [[row.encode() for row in page] for page in expected(rows, limit)]
    # The second time it knows how large rows are.
    for _ in range(2):
        some = list(pages(feed, limit, **options))
        assert [page for page, *_ in some if page] == wanted
        assert all(full for *_, full, caught_up in some if not caught_up)


def limits(engine):
    """Note for how many rows each statement asks that reads events."""
    found = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, *_):
        if "data" in statement and (asked := re.search(r"LIMIT (\$?)(\d+)", statement)):
            found.append(parameters[int(asked[2]) - 1] if asked[1] else int(asked[2]))

    return found


def test_page_has_no_more_events_than_are_wanted(engine):
    """However many statements read a page, they ask for as many rows as are left to be wanted."""
    feed = published(engine)
    write(engine, 200)
    asked = limits(engine)
    for wanted in (3, 8, 9, 20, 150):
        fresh = TableFeed(orders, data="data").bind(engine)
        for bound in (fresh, feed, fresh):
            bound.head()
            asked.clear()
            page = bound.read(0, FIRST, wanted)
            assert [one.data["n"] for one in page.events] == list(range(wanted))
            assert sum(asked) <= wanted + len(asked)  # each sees the event before its own as well


def test_events_of_any_sizes_come_whole_and_in_order(engine):
    """So they do where a database cuts a batch of rows that was expected to be smaller."""
    feed = published(engine)
    sizes = [20] * 1_000 + [10, 1_000, 100, 10_000, 100] * 200 + [100_000] * 50
    texts = [f"{number}é{'x' * size}" for number, size in enumerate(sizes)]
    with engine.begin() as connection:
        connection.execute(insert(orders), [{"data": text} for text in texts])
    found = [json.loads(raw) for raws, *_ in pages(feed, 1_000) for raw in raws]
    assert found == texts


def test_documents_that_mariadb_makes_come_whole(mariadb):
    """Escapes make a document longer than MariaDB expects of the columns that it is made of."""
    made = sa.type_coerce(sa.func.json_object("name", orders.c.customer), sa.JSON)
    feed = published(mariadb, data=made.label("made"))
    names = ["\x01" * length for length in range(40)]
    add(mariadb, orders, [{"customer": name} for name in names])
    found = [event.data["name"] for event in feed.read(0, FIRST, 50).events]
    assert found == names


def test_numbers_of_mariadb_come_with_all_digits(mariadb):
    """A number in a column that was declared JSON has as many digits as MariaDB prints."""
    feed, number = published(mariadb), -1.7976931348623157e308
    execute(mariadb, f"ALTER TABLE orders MODIFY data DOUBLE DEFAULT {number}")
    add(mariadb, orders, [{"customer": "ada"}] * 9)
    assert [event.data for event in feed.read(0, FIRST, 20).events] == [number] * 9


def test_positions_with_leading_zeros_are_numbers(mariadb):
    """A column with ZEROFILL is read like any other."""
    feed = published(mariadb)
    execute(mariadb, "ALTER TABLE orders MODIFY id BIGINT UNSIGNED ZEROFILL AUTO_INCREMENT")
    write(mariadb, 12)
    page = feed.read(0, FIRST, 20)
    assert [event.data["n"] for event in page.events] == [*range(12)]
    assert page.cursor.split("-")[1] == "12"


def test_page_comes_where_mariadb_has_no_room_to_join_it(mariadb_url):
    """A page is read as well while the disk of MariaDB's temporary tables is full."""
    with connected(mariadb_url, init_command="SET tmp_disk_table_size = 65536") as engine:
        feed = published(engine)
        with engine.begin() as connection:
            connection.execute(insert(orders), [{"data": "x" * 1_000} for _ in range(1_000)])
        assert [len(page) for page, *_ in pages(feed, 500)] == [500, 500]


@pytest.mark.parametrize("database", ["sqlite", "mariadb"])
def test_control_character_in_json_is_refused_by_its_position(request, database):
    """The error names the row whose text holds what separates joined texts."""
    engine = request.getfixturevalue(database)
    feed = published(engine)
    write(engine, 9)
    if database == "mariadb":
        execute(engine, "ALTER TABLE orders MODIFY data LONGTEXT")  # which needs no JSON
    broken = sa.text("UPDATE orders SET data = :text WHERE id = 7").bindparams(text='"a\x1eb"')
    with engine.begin() as connection:
        connection.execute(broken)
    with pytest.raises(FeedFailure, match="position 7 cannot be published"):
        feed.read(0, FIRST, 9)


def test_short_page_is_not_joined(mariadb, monkeypatch):
    """A consumer that follows a feed waits for no temporary table, which joining rows takes."""
    monkeypatch.setattr(rows, "MANY", 20)
    feed = published(mariadb)
    write(mariadb, 60)
    joined = []

    @event.listens_for(mariadb, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        joined.append("group_concat(" in statement)

    cursor = feed.read(0, FIRST, 50).cursor
    assert any(joined)
    joined.clear()
    assert [one.data["n"] for one in feed.read(0, cursor, 50).events] == [*range(50, 60)]
    assert not any(joined)


def test_usual_page_is_one_statement(engine):
    """Once a feed knows the size of its rows, a page and the row of its cursor are read at once."""
    feed = published(engine)
    write(engine, 5_000)
    asked = limits(engine)
    cursor = feed.read(0, FIRST, 1_000).cursor
    assert len(asked) <= 6
    asked.clear()
    for _ in range(3):
        cursor = feed.read(0, cursor, 1_000).cursor
    assert asked == [1_001] * 3


def test_large_rows_are_read_few_at_a_time(sqlite):
    """The rows of a statement fit into a quarter of a page."""
    published(sqlite)
    large, small = "x" * 10_000, "x" * 100
    with sqlite.begin() as connection:
        texts = [large] * 40 + [small] * 4_000
        connection.execute(insert(orders), [{"data": text} for text in texts])
    feed = TableFeed(orders, data="data").bind(sqlite, Capacity(page_bytes=200_000))
    feed.head()
    asked = limits(sqlite)
    cursor = feed.read(0, FIRST, 10_000).cursor
    assert asked[0] <= 8
    assert max(asked) <= 8
    asked.clear()
    while not (page := feed.read(0, cursor, 4_000)).caught_up:
        cursor = page.cursor
    # Small rows are forgotten to have been large by and by.
    assert max(asked) > 100


def test_deleted_events_take_no_room(sqlite):
    """Among positions that have lost their events a page holds as many bytes as among others."""
    feed = published(sqlite, Capacity(page_bytes=PAGE), ordering="sequenced")
    add(sqlite, orders, [{"data": str(n) * 400} for n in range(8)])
    feed.head()
    execute(sqlite, delete(orders).where(orders.c.id.in_([1, 2, 4, 7])))
    found = [[raw.decode()[1] for raw in page] for page, *_ in pages(feed, 9)]
    assert found == [["2", "4"], ["5", "7"]]


def test_pages_are_handed_over_up_to_one_whose_events_were_deleted(sqlite):
    """The feed hands over early no page without events, and none that follows it."""
    feed, early = published(sqlite, ordering="sequenced"), []
    write(sqlite, 12)
    feed.head()
    execute(sqlite, delete(orders).where(orders.c.id.in_([5, 6])))
    read = feed.read_pages(0, feed.read(0, FIRST, 2).cursor, 2, 4, on_page=early.append)
    assert [len(page.events) for page in read] == [2, 0, 2, 2]
    assert early == read[:1]


@pytest.mark.parametrize("options", [{}, {"mutable": True}, {"ordering": "sequenced"}], ids=str)
def test_event_that_is_longer_than_consumers_take_is_logged_once(sqlite, caplog, options):
    """The publisher's log names the position of the first event whose line ends Go's pages."""
    feed = published(sqlite, **options)
    with sqlite.begin() as connection:
        for size in (2, 70_000, 2, 70_000):
            connection.execute(insert(orders), {"data": {"text": "x" * size}})
    for _ in range(2):
        assert len(feed.read(0, FIRST, 10).events) == 4
    told = [one.getMessage() for one in caplog.records if one.name == "zeroeventhub.publisher"]
    (sentence,) = [one for one in told if "65,535" in one]
    assert sentence.startswith("The event at position 2 has 700")


KINDS = [
    *["Placed", "placed", "PLACED ", "pl\u00e5ced", "plac\u00e9d", "pla\u212aed", None, "", "paid"]
]
"""Types of events, of which `placed` names two; behind one is a space, in one a Kelvin sign."""

names = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=";*"), min_size=1
)


def write_kinds(engine, kinds):
    """Append an event of each type, numbered by its place in the list."""
    add(engine, orders, [{"kind": kind, "data": {"n": n}} for n, kind in enumerate(kinds)])


def fill(engine):
    """Let the empty table take any letters."""
    if engine.dialect.name == "mariadb":
        execute(engine, "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4")


def source(**options):
    """A feed over the orders, with their types."""
    return TableFeed(orders, **{"data": "data", "type": "kind", **options})


def fetch(feed, only=None, *, skip=None, cursor=FIRST):
    """Read a page of certain types; return the numbers of its events, and the page."""
    types = TypeFilter(frozenset(skip or only), skip=skip is not None)
    page = feed.read(0, cursor, 1000, types=types)
    return [event.data["n"] for event in page.events], page


def test_only_the_case_of_ascii_letters_is_passed_over(shop, feed):
    """Neither accents nor spaces nor letters that only look like ASCII are passed over."""
    write_kinds(shop, KINDS)
    assert fetch(feed, {"placed"})[0] == [0, 1]
    assert fetch(feed, skip={"PLACED"})[0] == [2, 3, 4, 5, 6, 7, 8]
    for name in ("plaKed", "plaked", "%", "p_id"):
        assert fetch(feed, {name})[0] == []


def test_events_without_a_type_are_of_none_or_of_the_default(shop, feed):
    """NULL and empty types are the default of CloudEvents, and without an envelope no type."""
    write_kinds(shop, [None, "", " ", "placed", "ORDERS"])
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
    write_kinds(shop, ["paid"] * 25 + ["placed"] + ["paid"] * 4)
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


@pytest.mark.parametrize("mode", ["TRADITIONAL", "EMPTY_STRING_IS_NULL", "ANSI_QUOTES"])
def test_modes_of_mariadb_change_no_page(mode, mariadb_url):
    """Whatever the mode of the host's sessions, a feed reads its events, and leaves out gaps."""
    host = create_engine(mariadb_url, connect_args={"sql_mode": mode})
    source = published(host, data="data", ordering="sequenced")
    add(host, orders, [{"data": number} for number in range(3)])
    source.head()
    execute(host, delete(orders).where(orders.c.id == 2))
    assert [event.data for event in source.read(0, FIRST, 9).events] == [0, 2]
    host.dispose()


def test_mode_that_hides_numbers_is_refused(mariadb_url):
    """A feed that cannot see the last number of its table does not say that it is at its end."""
    host = create_engine(mariadb_url, connect_args={"sql_mode": "NO_TABLE_OPTIONS"})
    with pytest.raises(ConfigurationError, match="sql_mode"):
        published(host, data="data").read(0, FIRST, 9)
    host.dispose()
