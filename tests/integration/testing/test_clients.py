"""Clients of feeds in the same process, and faults on demand."""

import asyncio

import pytest
from starlette.applications import Starlette

from zeroeventhub import FIRST, Principal, feed_routes
from zeroeventhub.errors import (
    CutPage,
    TokenChanged,
    Trimmed,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from zeroeventhub.testing import Faults, async_client_of, client_of, feed_of


def sync_fetch(feed, **options):
    """Return what fetches pages of a feed with a Client."""
    client = client_of(feed, **options)
    return lambda cursor=FIRST: client.fetch(0, cursor)


def async_fetch(feed, **options):
    """Return what fetches pages of a feed with an AsyncClient."""
    client = async_client_of(feed, **options)
    return lambda cursor=FIRST: asyncio.run(client.fetch(0, cursor))


@pytest.fixture(params=[sync_fetch, async_fetch], ids=["sync", "async"])
def fetching(request):
    """A function that returns one that fetches pages of a feed, with each client in turn."""
    return request.param


FAULTS = {
    "cut_page": CutPage,
    "token_changed": TokenChanged,
    "trimmed": Trimmed,
    "unavailable": Unavailable,
    "reset": Unreachable,
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_comes_once(fetching, name):
    """A fault spoils the next page, as a client sees it; the page after it is whole."""
    faults = Faults()
    fetch = fetching(feed_of(["a"]), faults=faults)
    getattr(faults, name)()
    assert faults.pending == 1
    with pytest.raises(FAULTS[name]):
        fetch()
    assert faults.pending == 0
    assert [event.data for event in fetch().events] == ["a"]


def test_fault_says_what_was_asked_for(fetching):
    """Faults come in order, with their seconds and cursors."""
    faults = Faults()
    fetch = fetching(feed_of(["a"]), faults=faults)
    faults.unavailable(retry_after=20)
    faults.trimmed("7")
    with pytest.raises(Unavailable) as caught:
        fetch()
    assert caught.value.retry_after == 20
    with pytest.raises(Trimmed) as gone:
        fetch()
    assert gone.value.earliest == "7"


def test_application_is_read_with_credentials(fetching):
    """An application of one's own is read at its path, with the headers that it asks for."""

    def authorize(request):
        if request.headers.get("authorization") != "Bearer right":
            raise Unauthorized("Who are you?")
        return Principal(name="reader")

    app = Starlette(routes=feed_routes("/orders", feed_of(["a"]), authorize=authorize))
    fetch = fetching(app, path="/orders", headers={"Authorization": "Bearer right"})
    assert [event.data for event in fetch().events] == ["a"]
    with pytest.raises(Unauthorized):
        fetching(app, path="/orders")()


def test_failing_feed_answers_as_a_server_does(fetching):
    """An application that raises is a server that answers with status 500."""

    async def app(scope, receive, send):
        raise ValueError

    with pytest.raises(Unavailable):
        fetching(app)()
