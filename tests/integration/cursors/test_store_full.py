"""A consumer's database that is full, and events that a database cannot hold."""

import httpx
import pytest
from harness.stores import new_store
from harness.web import serving
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, event, insert, select
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    Client,
    Consumer,
    Event,
    Failures,
    FeedInfo,
    Page,
    feed_routes,
)
from zeroeventhub.errors import Halted

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


class Notes:
    """Publish notes of two keys in turn; a cursor counts the notes before it.

    Args:
        texts: what they say, as JSON texts.
    """

    def __init__(self, *texts: bytes) -> None:
        self.events = [
            Event(
                b'{"specversion":"1.0","id":"%d","source":"/notes","type":"note",'
                b'"subject":"%s","data":{"n":%d,"text":%s}}'
                % (n, (b"even", b"odd")[n % 2], n, text)
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


def run(feed, store, failures):
    """Apply all notes, three in a page."""
    application = Starlette(routes=feed_routes("/notes", feed))
    with serving(application) as url, httpx.Client() as http:
        client = Client(f"{url}/notes", http)
        consumer = Consumer(client, store, "reader", follow=False, limit=3, failures=failures)
        consumer.run(note)


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
    """Make the tables of a consumer."""
    notes.metadata.create_all(engine)
    return new_store(engine)


@pytest.fixture
def full(tmp_path):
    """An engine of a database that grows by no more pages than `full.room` says."""
    engine = create_engine(f"sqlite:///{tmp_path / 'full.db'}")
    room = [2**30]

    @event.listens_for(engine, "connect")
    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {room[0]}")

    def leave(pages):
        with engine.connect() as connection:
            used = connection.exec_driver_sql("PRAGMA page_count").scalar()
        room[0] = used + pages
        engine.dispose()

    yield engine, leave
    engine.dispose()


def test_full_disk_rolls_the_page_back(full):
    """A page that no longer fits is rolled back whole, and applied when there is room."""
    engine, leave = full
    store, feed = prepared(engine), Notes(*[b'"' + b"x" * 3000 + b'"'] * 30)
    came_to = set()
    for _ in range(3):
        leave(7)
        with pytest.raises((Halted, OperationalError), match="database or disk is full"):
            run(feed, store, HALT)
        done, written, _ = standing(store)
        assert written == list(range(done))
        came_to.add(done)
    assert len(came_to) > 1, "the disk has to have been full in the middle of the feed"
    leave(2**20)
    run(feed, store, HALT)
    assert standing(store) == (30, list(range(30)), [])


def test_full_disk_sets_nothing_aside(full):
    """No event is at fault where the disk is full: the partition halts, whatever was chosen."""
    engine, leave = full
    store = prepared(engine)
    leave(5)
    with pytest.raises(Halted, match="database or disk is full"):
        run(Notes(*[b'"' + b"x" * 3000 + b'"'] * 30), store, SET_ASIDE)
    done, written, letters = standing(store)
    assert written == list(range(done))
    assert not letters


POSITIONS = [
    pytest.param(position, marks=[] if position in {0, 4} else pytest.mark.test_all)
    for position in range(6)
]
"""Of two pages; the first of one and the middle of another stand for all."""


def refused_at(position):
    """Make notes of which one holds what PostgreSQL refuses."""
    texts = [FINE] * 6
    texts[position] = NUL
    return Notes(*texts)


@pytest.mark.parametrize("position", POSITIONS)
def test_text_that_the_database_refuses_is_set_aside(postgresql, position):
    """Wherever it is in its page, all other events are applied, in order."""
    store = prepared(postgresql)
    run(refused_at(position), store, SET_ASIDE)
    others = [n for n in range(6) if n != position]
    assert standing(store) == (6, others, [position])


@pytest.mark.parametrize("position", POSITIONS)
def test_later_events_of_its_key_are_held_back(postgresql, position):
    """Wherever it is in its page, those of its key wait behind it, and the other key goes on."""
    store = prepared(postgresql)
    run(refused_at(position), store, HOLD_BACK)
    waiting = list(range(position, 6, 2))
    others = [n for n in range(6) if n not in waiting]
    assert standing(store) == (6, others, waiting)


@pytest.mark.parametrize("position", POSITIONS)
def test_text_that_the_database_refuses_halts(postgresql, position):
    """Nothing of its page is applied, and everything before it."""
    store = prepared(postgresql)
    with pytest.raises(Halted, match="NUL"):
        run(refused_at(position), store, HALT)
    before = position - position % 3
    assert standing(store) == (before, list(range(before)), [])
