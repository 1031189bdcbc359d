"""Pages that are inserted at once, on every database."""

import json
from datetime import date

import pytest
import sqlalchemy as sa
from harness.json_values import json_values
from harness.landed import flat, inserted, small, stored
from harness.statements import execute
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event
from sqlalchemy.exc import IntegrityError

from zeroeventhub import Event
from zeroeventhub.consumer.event_insert import insert_events
from zeroeventhub.databases.bulk_insert import insert_columns
from zeroeventhub.errors import ProtocolError

# SQLite has no decimal numbers, as SQLAlchemy says.
pytestmark = pytest.mark.filterwarnings("ignore:Dialect sqlite")


def test_page_is_one_statement(tables):
    """A page is sent at once, on PostgreSQL by COPY; a duplicate key is an IntegrityError."""
    seen = []
    event.listen(tables, "before_cursor_execute", lambda *args: seen.append((args[2], args[5])))
    events = [Event(b'{"n":%d}' % number) for number in range(1, 50)]
    with tables.begin() as connection:
        insert_events(connection, small, events)
    if tables.dialect.name == "postgresql":
        assert seen == []
    else:
        ((statement, many),) = seen
        assert statement.startswith("INSERT INTO small")
        assert many
    assert len(stored(tables, small)) == 49
    with tables.connect() as connection, pytest.raises(IntegrityError):
        insert_events(connection, small, [Event(b'{"n":50}'), Event(b'{"n":50}')])


def test_columns_come_in_any_order(tables):
    """Values reach their own columns, in whatever order columns are given."""
    with tables.begin() as connection:
        insert_columns(connection, small, {"document": ["[1]", "[2]"], "n": [1, 2]})
    assert [(row["n"], row["document"]) for row in stored(tables, small)] == [(1, [1]), (2, [2])]


class YesNo(sa.TypeDecorator):
    """Store a boolean as a word."""

    impl = sa.String(3)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else "yes" if value else "no"


class Cents(sa.TypeDecorator):
    """Store an amount as a whole number."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else round(100 * value)


def test_value_is_stored_by_the_type_of_the_host(tables):
    """A boolean reaches a plain column as one, and another, as a number does, as its type says."""
    databases = ("postgresql", "mysql", "mariadb", "sqlite")
    table = sa.Table(
        "answers",
        sa.MetaData(),
        sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("plain", sa.Boolean),
        sa.Column("word", sa.Boolean().with_variant(YesNo(), *databases)),
        sa.Column("cents", sa.Float().with_variant(Cents(), *databases)),
    )
    answers = [(0, True), (1, False), (2, None)]
    with tables.begin() as connection:
        table.create(connection)
        for start, row in ((0, None), (3, lambda event: event.data)):
            data = [
                {"n": start + n, "plain": answer, "word": answer, "cents": 1.5}
                for n, answer in answers
            ]
            insert_events(connection, table, [*map(Event.of, data)], row)
        query = sa.text("SELECT plain, word, cents FROM answers ORDER BY n")
        found = connection.execute(query).all()
        table.drop(connection)
    assert found == [(True, "yes", 150), (False, "no", 150), (None, None, 150)] * 2


class Code(sa.TypeDecorator):
    """Store a word as its code, which a word without one does not have."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return next(code for code, word in enumerate(["a", "b"]) if word == value)


def test_type_of_the_host_that_raises_as_an_iterator_ends_loses_no_row(tables):
    """A StopIteration of a type is the fault of its value, and not the end of the rows."""
    table = sa.Table("codes", sa.MetaData(), sa.Column("word", Code))
    events = [Event.of({"word": word}) for word in ("a", "other", "b")]
    with tables.begin() as connection:
        table.create(connection)
        with pytest.raises(ProtocolError, match=r"Event 2 of the page .* column 'word'"):
            insert_events(connection, table, events)
        table.drop(connection)


@pytest.mark.anyio
async def test_page_is_inserted_through_asyncio(async_engine):
    """The rows arrive through an async driver as well, and a duplicate key is refused."""
    events = [Event(b'{"n":%d,"text":"a"}' % number) for number in (1, 2)]
    documents = [Event(b'{"n":1,"document":[1]}')]
    async with async_engine.begin() as connection:
        for table, page in ((flat, events), (small, documents)):
            await connection.run_sync(table.create)
            await connection.run_sync(insert_events, table, page)
    async with async_engine.connect() as connection:
        with pytest.raises(IntegrityError):
            await connection.run_sync(insert_events, flat, events)
        await connection.rollback()
        assert [row.n for row in await connection.execute(flat.select())] == [1, 2]
        assert (await connection.execute(small.select())).one().document == [1]


json_data = json_values(st.integers(-(2**53), 2**53) | st.text(max_size=6), st.text(max_size=4))
# PostgreSQL has no place for the character with number 0.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(st.lists(st.tuples(st.none() | texts, json_data), max_size=6))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_and_json_arrive_unchanged(tables, rows):
    """Whatever characters are in texts and documents, they are read as they were sent."""
    sent = [
        {"n": number, "text": words, "document": document}
        for number, (words, document) in enumerate(rows, start=1)
        if "\\u0000" not in json.dumps(document)
    ]
    execute(tables, delete(small))
    got = inserted(tables, small, [Event.of(row) for row in sent])
    assert got == sent


ODD = '| |null|NULL|\\N|\\.|"|""|a,b|],[|]\n[|a\r\nb|\\n|\t|\x7f'
odd_texts = st.sampled_from(ODD.split("|"))
flat_rows = st.fixed_dictionaries(
    {},
    optional={
        "text": st.none() | odd_texts | st.lists(odd_texts | texts, max_size=4).map("".join),
        "amount": st.none() | st.floats(-1e15, 1e15) | st.integers(-(2**53), 2**53),
        "price": st.none() | st.integers(-(10**9), 10**9).map(lambda number: number / 64),
        "paid": st.none() | st.booleans(),
        "due": st.none() | st.dates(date(1000, 1, 1)).map(date.isoformat),
    },
)


@given(st.lists(flat_rows, max_size=6))
@example([{"text": 'say "hi" \\ there'}, {"text": "\\", "amount": 1e16}])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flat_rows_arrive_unchanged(tables, rows):
    """Rows without documents arrive as they were sent, whatever separates them on the way."""
    sent = [{"n": number, **row} for number, row in enumerate(rows, start=1)]
    execute(tables, delete(flat))
    got = inserted(tables, flat, [Event.of(row) for row in sent])
    absent = dict.fromkeys(("text", "amount", "price", "paid", "due"))
    due = [row.get("due") and date.fromisoformat(row["due"]) for row in rows]
    assert got == [{**absent, **row, "due": day} for row, day in zip(sent, due, strict=True)]
