"""Feeds of one's own: what the server makes of their answers."""

from dataclasses import replace

import pytest
from harness.readers import client_of, get, mounted, numbers

from zeroeventhub import FIRST, LAST, Event, FeedInfo, Page, Partition


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (Page([], 1), "another int"),
        (Page([], FIRST), "another str"),
        (Page([], LAST), "another str"),
        (Page([], "zürich"), "another str"),
        (Page([{"n": 1}], "1"), "here it has a dict"),
        ([Event.of(1)], "here it is a list"),
        (None, "here it is a NoneType"),
    ],
    ids=["number", "first", "last", "not ASCII", "no Event", "no Page", "nothing"],
)
def test_page_that_is_none_is_a_failure_that_says_why(feed, records, page, said):
    """Readers get no page that they could not read, and the publisher's log says what is wrong."""
    with mounted(feed) as url:
        assert numbers(get(url)) == [0]
        feed.read = lambda *_, **__: page
        assert get(url).status_code == 500
    *_, record = records()
    assert said in record.getMessage()


@pytest.mark.parametrize("info", [None, FeedInfo((Partition(0),), 1)], ids=["nothing", "number"])
def test_description_that_is_none_is_a_failure_that_says_why(feed, records, info):
    """A feed that describes itself otherwise fails, and the publisher's log says how it should."""
    feed.info = lambda: info
    with mounted(feed) as url:
        assert get(url).status_code == 500
    *_, record = records()
    assert "info() returns a FeedInfo, whose token is a text" in record.getMessage()


def test_feed_of_version_1_can_be_relayed(feed):
    """The token of a feed that has none follows from its partitions, and readers can use it."""
    described = replace(feed.info(), token=None)
    feed.info = lambda: described
    with mounted(feed) as url, client_of(url) as client:
        assert client.discover().token == "1"
        assert [event.data for event in client.fetch(0, FIRST).events] == [{"n": 0}]
