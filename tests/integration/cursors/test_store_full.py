"""A consumer's database that is full, and events that a database cannot hold."""

import httpx
import pytest
from harness.web import serving
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, event, insert, select
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    Client,
    Consumer,
    CursorStore,
    Event,
    Failures,
    FeedInfo,
    Page,
    feed_routes,
)
from zeroeventhub.errors import Halted, ProtocolError

notes = Table(
    "notes",
    MetaData(),
    Column("arrival", Integer, primary_key=True),
    Column("n", Integer, nullable=False),
    Column("text", Text, nullable=False),
)
"""What the consumer writes."""

HALT = Failures(tries=1)
SET_ASIDE = Failures(tries=1, then="set-aside")
HOLD_BACK = Failures(tries=1, then="set-aside", hold_back=True)

FINE = b'"fine"'
NUL = rb'"a\u0000b"'
"""Text that PostgreSQL does not take."""

SURROGATE = rb'"a\ud800b"'
"""Text that the protocol does not know."""


class Notes:
    """Publish notes of two keys in turn; a cursor counts the notes before it.

    Args:
        texts: what they say, as JSON texts.
        keys: their keys, as they stand in JSON strings.
    """

    def __init__(self, *texts: bytes, keys: tuple[bytes, bytes] = (b"even", b"odd")) -> None:
        self.events = [
            Event(
                b'{"specversion":"1.0","id":"%d","source":"/notes","type":"note",'
                b'"subject":"%s","data":{"n":%d,"text":%s}}' % (n, keys[n % 2], n, text)
            )
            for n, text in enumerate(texts)
        ]

    def info(self) -> FeedInfo:
        """Describe a feed of one partition."""
        return FeedInfo.of(1)

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the notes that follow a cursor."""
        place = 0 if cursor == FIRST else int(cursor[1:])
        events = self.events[place : place + limit]
        return Page(events, f"c{place + len(events)}")


def run(feed, store, failures, *, apply=None):
    """Apply all notes, three in a page."""
    application = Starlette(routes=feed_routes("/notes", feed))
    with serving(application) as url, httpx.Client() as http:
        client = Client(f"{url}/notes", http)
        consumer = Consumer(client, store, "reader", follow=False, limit=3, failures=failures)
        consumer.run(apply or note)


def note(connection, page):
    """Write the notes of a page."""
    rows = [event.data["data"] for event in page.events]
    connection.execute(insert(notes), rows)


def standing(store):
    """Return how many notes are before the cursor, what was written, and what was set aside."""
    with store.engine.connect() as connection:
        written = list(connection.scalars(select(notes.c.n).order_by(notes.c.arrival)))
        cursor = store.cursors(connection, "reader").get(0, FIRST)
        letters = store.dead_letters.letters(connection, "reader")
    numbers = [letter.event.data["data"]["n"] for letter in letters]
    return 0 if cursor == FIRST else int(cursor[1:]), written, numbers


def prepared(engine):
    """Make the tables of a consumer, and empty them."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        notes.metadata.create_all(connection)
        for table in (*store.tables.all(), notes):
            connection.execute(table.delete())
    return store


def test_full_disk(tmp_path):
    """A page that no longer fits is rolled back whole, with an error that says why."""
    room = 0

    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {room or 2**30}")

    engine = create_engine(f"sqlite:///{tmp_path / 'full.db'}")
    event.listen(engine, "connect", limit)
    store = prepared(engine)
    feed = Notes(*[b'"' + b"x" * 3000 + b'"'] * 30)
    with engine.connect() as connection:
        used = connection.exec_driver_sql("PRAGMA page_count").scalar()
    came_to = set()
    for more in range(1, 25, 2):
        room = used + more
        engine.dispose()
        with pytest.raises((Halted, OperationalError), match="database or disk is full"):
            run(feed, store, HALT)
        done, written, _ = standing(store)
        assert written == list(range(done))
        came_to.add(done)
    assert len(came_to) > 3, "the disk has to have been full in the middle of the feed"
    room = 0
    engine.dispose()
    run(feed, store, HALT)
    assert standing(store) == (30, list(range(30)), [])
    engine.dispose()


def test_full_disk_sets_nothing_aside(tmp_path):
    """No event is at fault where the disk is full: the partition halts, whatever was chosen."""
    room = 0

    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {room or 2**30}")

    engine = create_engine(f"sqlite:///{tmp_path / 'full.db'}")
    event.listen(engine, "connect", limit)
    store = prepared(engine)
    with engine.connect() as connection:
        room = connection.exec_driver_sql("PRAGMA page_count").scalar() + 5
    engine.dispose()
    with pytest.raises(Halted, match="database or disk is full"):
        run(Notes(*[b'"' + b"x" * 3000 + b'"'] * 30), store, SET_ASIDE)
    done, written, letters = standing(store)
    assert written == list(range(done))
    assert not letters
    engine.dispose()


def at_each_position(engine, text):
    """Yield notes of which one is another, in every position of two pages, and an empty store."""
    for position in range(6):
        texts = [FINE] * 6
        texts[position] = text
        yield position, Notes(*texts), prepared(engine)


def test_text_that_the_database_refuses_is_set_aside(postgresql):
    """Wherever it is in its page, all other events are applied, in order."""
    for position, feed, store in at_each_position(postgresql, NUL):
        run(feed, store, SET_ASIDE)
        others = [n for n in range(6) if n != position]
        assert standing(store) == (6, others, [position])


def test_later_events_of_its_key_are_held_back(postgresql):
    """Wherever it is in its page, those of its key wait behind it, and the other key goes on."""
    for position, feed, store in at_each_position(postgresql, NUL):
        run(feed, store, HOLD_BACK)
        waiting = list(range(position, 6, 2))
        others = [n for n in range(6) if n not in waiting]
        assert standing(store) == (6, others, waiting)


def test_text_that_the_database_refuses_halts(postgresql):
    """Nothing of its page is applied, and everything before it."""
    for position, feed, store in at_each_position(postgresql, NUL):
        with pytest.raises(Halted, match="NUL"):
            run(feed, store, HALT)
        before = position - position % 3
        assert standing(store) == (before, list(range(before)), [])


def test_text_that_the_protocol_refuses_ends_the_run(sqlite):
    """A feed that sends it breaks the protocol: what was read before is applied, and no more."""
    for position, feed, store in at_each_position(sqlite, SURROGATE):
        with pytest.raises(ProtocolError):
            run(feed, store, SET_ASIDE)
        before = position - position % 3
        assert standing(store) == (before, list(range(before)), [])


def test_keys_of_any_kind_hold_back(engine):
    """A key may be what no column and no index would take."""

    def refuse(connection, page):
        note(connection, page)
        if any(event.data["data"]["n"] == 1 for event in page.events):
            raise ValueError("I do not like it.")

    for key in (rb"a\u0000b", b"k" * 5000, "schlüssel 🔑".encode(), b""):
        store = prepared(engine)
        run(Notes(*[FINE] * 6, keys=(b"even", key)), store, HOLD_BACK, apply=refuse)
        assert standing(store) == (6, [0, 2, 4], [1, 3, 5])


def test_errors_of_any_kind_are_written_down(engine):
    """An error may say what no column would take, and its event is set aside all the same."""
    for text in ("a\0b", "a\ud800b", "x" * 300_000, "🔑"):

        def refuse(connection, page, text=text):
            raise ValueError(text)

        store = prepared(engine)
        run(Notes(FINE, FINE), store, SET_ASIDE, apply=refuse)
        assert standing(store) == (2, [], [0, 1])
