"""The page that is fetched ahead, and the thread that fetches it."""

import threading
import weakref

import pytest
from harness.billing import wait_until

from zeroeventhub._follow import Fetch
from zeroeventhub.consumer.running.ahead import Ahead
from zeroeventhub.errors import Unavailable
from zeroeventhub.protocol import Event, Page


@pytest.fixture
def asked():
    """The cursors that were asked for, each with the thread that did."""
    return []


@pytest.fixture
def ahead(asked):
    """Fetch ahead, from a feed that has a page behind every cursor but one."""

    def fetch(step):
        asked.append((step.cursor, threading.current_thread()))
        if step.cursor == "broken":
            raise Unavailable("not now")
        return Page([Event(b"1")], step.cursor + "+")

    ahead = Ahead(fetch)
    yield ahead
    ahead.drop()


def test_pages_are_fetched_by_one_thread(ahead, asked):
    """One thread fetches page after page, and ends when it is told to."""
    for cursor in ("a", "b", "c"):
        ahead.start(Fetch(0, cursor))
        assert ahead.fetch(Fetch(0, cursor)).cursor == cursor + "+"
    ((_, thread), *others) = asked
    assert thread is not threading.current_thread()
    assert {other for _, other in others} == {thread}
    ahead.drop()
    assert not thread.is_alive()
    ahead.start(Fetch(0, "d"))
    assert ahead.fetch(Fetch(0, "d")).cursor == "d+"


def test_page_for_another_cursor_is_dropped(ahead, asked):
    """What came ahead is only for who asks for the same; all others have theirs fetched."""
    ahead.start(Fetch(0, "a"))
    ahead.start(Fetch(0, "a"))
    assert ahead.has(Fetch(0, "a"))
    assert not ahead.has(Fetch(1, "a"))
    assert ahead.fetch(Fetch(0, "b")).cursor == "b+"
    assert not ahead.has(Fetch(0, "a"))
    assert [cursor for cursor, _ in asked] == ["a", "b"]


def test_error_is_raised_where_the_page_is_asked_for(ahead):
    """What went wrong ahead goes wrong in its turn, and the next page comes."""
    ahead.start(Fetch(0, "broken"))
    with pytest.raises(Unavailable):
        ahead.fetch(Fetch(0, "broken"))
    ahead.start(Fetch(0, "a"))
    assert ahead.fetch(Fetch(0, "a")).cursor == "a+"


def test_page_that_was_handed_over_is_forgotten(ahead):
    """The thread that waits for the next page to fetch does not keep the one before."""
    ahead.start(Fetch(0, "a"))
    known = weakref.ref(ahead.fetch(Fetch(0, "a")))
    wait_until(lambda: known() is None)
