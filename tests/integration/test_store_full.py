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

NUL = rb'"a\\u0000b"'
SURROGATE = rb'"a\\ud800b"'
HOSTILE = {"U+0000": NUL, "lone surrogate": SURROGATE}


class Notes:
    """Publish notes, given as JSON texts; a cursor counts the notes before it."""

    def __init__(self, *texts: bytes) -> None:
        self.events = [
            Event(
                b'{"specversion":"1.0","id":"%d","source":"/notes","type":"note",'
                b'"subject":"%d","data":{"n":%d,"text":%s}}' % (n, n % 2, n, text)
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


def run(url, store, **options):
    """Apply all notes, three in a page."""
    with httpx.Client() as http:
        options = {"follow": False, "limit": 3, **options}
        Consumer(Client(f"{url}/notes", http), store, "reader", **options).run(note)


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
    number = {letter.id: int(letter.event.raw.partition(b'"id":"')[2][:1]) for letter in letters}
    return 0 if cursor == FIRST else int(cursor[1:]), written, [*number.values()]


def prepared(engine):
    """Make the tables of a consumer."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        notes.metadata.create_all(connection)
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
    with serving(Starlette(routes=feed_routes("/notes", feed))) as url:
        came_to = []
        for more in range(1, 25):
            room = used + more
            engine.dispose()
            with pytest.raises((Halted, OperationalError)) as failure:
                run(url, store, failures=HALT)
            assert "disk is full" in f"{failure.value} {failure.value.__cause__}"
            done, written, _ = standing(store)
            assert written == list(range(done))
            came_to.append(done)
        room = 0
        engine.dispose()
        run(url, store, failures=HALT)
    engine.dispose()
    assert standing(store) == (30, list(range(30)), [])
    assert len(set(came_to)) > 3, "the disk has to have been full in the middle of the feed"


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("position", range(6))
def test_hostile_event_is_set_aside(postgresql, what, position):
    """An event that cannot be written is set aside, and all others are applied in order."""
    texts = [b'"fine"'] * 6
    texts[position] = HOSTILE[what]
    store = prepared(postgresql)
    with serving(Starlette(routes=feed_routes("/notes", Notes(*texts)))) as url:
        run(url, store, failures=SET_ASIDE)
    others = [n for n in range(6) if n != position]
    assert standing(store) == (6, others, [position])
