"""A consumer's database that is full, and events that a database cannot hold."""

import httpx
import pytest
from harness.stores import new_store
from harness.web import serving
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, event, insert, select
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette

from zeroeventhub import FIRST, Client, Consumer, Event, Failures, FeedInfo, Page, feed_routes
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


class Notes:
    """Publish notes of two keys in turn; a cursor counts the notes before it."""

    def __init__(self, *texts):
        common = {"specversion": "1.0", "source": "/notes", "type": "note"}
        self.events = [
            Event.of(
                {**common, "id": str(n), "subject": str(n % 2), "data": {"n": n, "text": words}}
            )
            for n, words in enumerate(texts)
        ]

    def info(self):
        """Describe a feed of one partition."""
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        """Read the notes that follow a cursor."""
        place = 0 if cursor == FIRST else int(cursor[1:])
        events = self.events[place : place + limit]
        return Page(events, f"c{place + len(events)}")


def run(feed, store, failures):
    """Apply all notes, three in a page."""

    def note(connection, page):
        rows = [event.data["data"] for event in page.events]
        connection.execute(insert(notes), rows)

    application = Starlette(routes=feed_routes("/notes", feed))
    with serving(application) as url, httpx.Client() as http:
        client = Client(f"{url}/notes", http)
        consumer = Consumer(client, store, "reader", follow=False, limit=3, failures=failures)
        consumer.run(note)


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


@pytest.mark.parametrize("failures", [HALT, SET_ASIDE])
def test_full_disk_halts_and_sets_nothing_aside(tmp_path, failures):
    """A page that no longer fits is rolled back whole, and applied when there is room."""
    engine = create_engine(f"sqlite:///{tmp_path / 'full.db'}")
    room = [2**30]

    @event.listens_for(engine, "connect")
    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {room[0]}")

    def leave(pages):
        with engine.connect() as connection:
            room[0] = connection.exec_driver_sql("PRAGMA page_count").scalar() + pages
        engine.dispose()

    store, feed = prepared(engine), Notes(*["x" * 3000] * 30)
    came_to = set()
    for _ in range(3):
        leave(7)
        with pytest.raises((Halted, OperationalError), match="database or disk is full"):
            run(feed, store, failures)
        done, written, letters = standing(store)
        assert (written, letters) == (list(range(done)), [])
        came_to.add(done)
    assert len(came_to) > 1, "the disk has to have been full in the middle of the feed"
    leave(2**20)
    run(feed, store, failures)
    assert standing(store) == (30, list(range(30)), [])
    engine.dispose()


@pytest.mark.parametrize("position", [0, 4])
def test_text_that_the_database_refuses_is_set_aside(postgresql, position):
    """All other events are applied, or all but those of its key that come behind it."""
    store = prepared(postgresql)
    texts = ["fine"] * 6
    texts[position] = "a\0b"
    with pytest.raises(Halted, match="NUL"):
        run(Notes(*texts), store, HALT)
    before = list(range(position - position % 3))
    assert standing(store) == (len(before), before, [])
    run(Notes(*texts), store, HOLD_BACK if position else SET_ASIDE)
    aside = list(range(position, 6, 2)) if position else [0]
    assert standing(store) == (6, [n for n in range(6) if n not in aside], aside)
