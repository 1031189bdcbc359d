"""Rows whose events are JSON already: each is one event, or all of them are refused."""

import json

import pytest
from harness.statements import execute
from harness.tables import event_table
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import JSON, create_engine
from sqlalchemy.pool import StaticPool

from zeroeventhub import LAST, TableFeed
from zeroeventhub.errors import FeedFailure
from zeroeventhub.publisher import rows

LOG = event_table("log", data=JSON)
PIECES = ["{}", '{"n":1}', "1", '"a"', "\x1e", "\n", " ", "", "\\", "null", '"', "\u2028"]
LONE = '"\\ud800"'
texts = st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map("".join) | st.just(LONE)


@pytest.fixture(scope="module", params=[0, 10])
def _many(request):
    """Let the database join the rows of all pages, or of long ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "MANY", request.param)
        yield


@pytest.fixture(scope="module", params=[None, "sequenced"], ids=str)
def memory(request, _many):
    """A database in memory with an empty table, and a feed over it in each ordering."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    feed = TableFeed(LOG, data="data", ordering=request.param, mutable=True)
    with engine.begin() as connection:
        # The column is of text, in which SQLite keeps everything as it is.
        connection.exec_driver_sql(
            "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, data TEXT)"
        )
        feed.install(connection)
    yield engine, feed.bind(engine)
    engine.dispose()


def read_all(feed, cursor, limit):
    """Read on to the end, in pages of any size."""
    events = []
    while True:
        page = feed.read(0, cursor, limit)
        events += page.events
        cursor = page.cursor
        if page.caught_up:
            return events


@settings(max_examples=30)
@given(st.lists(texts, min_size=1, max_size=20), st.sets(st.integers(0, 19)), st.integers(1, 25))
@example(["1\x1e2", " "], set(), 9)
@example(['{"a":1}\x1e', '{"c":1}'], set(), 9)
@example(["[1][2]", ""], set(), 9)
@example(['1,"data":2'], set(), 9)
@example(["[1", "2]"], set(), 9)
def test_texts_are_the_events_or_are_refused(memory, stored, deleted, limit):
    """Whatever texts rows hold, each is one value of JSON and one event, or all are refused."""
    engine, feed = memory
    execute(engine, "DELETE FROM log")
    start = feed.read(0, LAST, 1).cursor
    with engine.begin() as connection:
        for text in stored:
            connection.exec_driver_sql("INSERT INTO log (data) VALUES (?)", (text,))
    feed.head()
    first = int(start.split("-")[1]) + 1
    with engine.begin() as connection:
        for number in deleted:
            connection.exec_driver_sql("DELETE FROM log WHERE id = ?", (first + number,))
    left = [text for n, text in enumerate(stored) if n not in deleted]
    expected = ["null" if text is None else text for text in left]
    if all(is_json(text) for text in expected):
        found = read_all(feed, start, limit)
        assert [json.loads(event.raw) for event in found] == list(map(json.loads, expected))
        assert not any(b"\n" in event.raw for event in found)
        return
    with pytest.raises(FeedFailure, match="cannot be published"):
        read_all(feed, start, limit)


def is_json(text):
    """Tell whether a text is one value of JSON that Unicode can hold."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return text.strip() != LONE
