"""Feeds of one's own: what the server makes of their answers."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from harness.readers import client_of, get, kind, mounted, numbers
from harness.web import serving
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from zeroeventhub import FIRST, LAST, Client, Event, FeedInfo, Page, Partition
from zeroeventhub.errors import Trimmed, Unauthorized, Unavailable


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


class Relay:
    """A feed that is another one, as its docstring in the port has it."""

    def __init__(self, client):
        self.client = client

    def info(self):
        return FeedInfo((Partition(0),), "1")

    def read(self, partition, cursor, limit):
        return self.client.fetch(partition, cursor, limit=limit)


@contextmanager
def relayed(url):
    """Serve the relay of a feed; yield a function that returns a status and what is said."""
    with mounted(Relay(Client(url))) as own:

        def ask():
            answer = get(own)
            assert url not in answer.text
            return answer.status_code, answer.json()["detail"]

        yield ask


AWAY = "The feed cannot reach what it reads from."
REFUSED = "The feed that this one reads has refused it."


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (401, (503, AWAY)),
        (403, (503, AWAY)),
        (404, (503, AWAY)),
        (409, (409, REFUSED)),
        (410, (410, REFUSED)),
        (502, (503, REFUSED)),
    ],
)
def test_refusal_in_plain_text_is_relayed_without_it(status, answer):
    """Readers of a relay learn neither an address nor the words of what stands before the feed."""

    async def refuse(_):
        return Response("Ask the proxy kanarek.", status)

    application = Starlette(routes=[Route("/{path:path}", refuse)])
    with serving(application) as url, relayed(f"{url}/orders") as ask:
        assert ask() == answer


def test_refusal_by_a_feed_is_relayed_in_its_words(feed):
    """What a feed says of a cursor or of its state is for all; that it knows no reader is not."""
    with mounted(feed) as url, relayed(url) as ask:
        for error, answer in [
            (Trimmed("why", earliest="7"), (410, "why")),
            (Unavailable("why"), (503, "why")),
            (Unauthorized("why"), (503, AWAY)),
        ]:
            feed.error = error
            assert ask() == answer


def test_reader_of_a_relay_learns_of_partitions_that_another_one_has_discovered(feed):
    """Where partitions are replaced while a request is answered, it gets 409 in place of 400."""
    with mounted(feed) as url:
        client = Client(url)
        with mounted(Relay(client)) as own:
            assert numbers(get(own)) == [0]
            feed.info = lambda: FeedInfo((Partition(1),), "2")
            client.discover()
            answer = get(own)
            assert (answer.status_code, kind(answer)) == (409, "token-changed")
