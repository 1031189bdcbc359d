"""Fixtures for pytest, which finds them by itself where this package is installed.

They import the library only when a test asks for one of them.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeroeventhub import AsyncClient, Client, CursorStore
    from zeroeventhub.consumer.steps import Pause
    from zeroeventhub.testing import Faults, LogFeed, MemoryFeed


@pytest.fixture
def event_feed() -> "MemoryFeed":
    """Return an empty feed of one partition in memory; append events to it."""
    from zeroeventhub.testing import feed_of

    return feed_of()


@pytest.fixture
def feed_faults() -> "Faults":
    """Return what lets the next pages of `feed_client` or `async_feed_client` go wrong."""
    from zeroeventhub.testing import Faults

    return Faults()


@pytest.fixture
def feed_client(event_feed: "MemoryFeed", feed_faults: "Faults") -> "Client":
    """Return a client of `event_feed`, without sockets."""
    from zeroeventhub.testing import client_of

    return client_of(event_feed, faults=feed_faults)


@pytest.fixture
def async_feed_client(event_feed: "MemoryFeed", feed_faults: "Faults") -> "AsyncClient":
    """Return an AsyncClient of `event_feed`, without sockets."""
    from zeroeventhub.testing import async_client_of

    return async_client_of(event_feed, faults=feed_faults)


@pytest.fixture
def log_feed() -> "LogFeed":
    """Return a feed over an empty table of SQLite, with its engine and its log."""
    from zeroeventhub.testing import LogFeed

    return LogFeed()


@pytest.fixture
def cursor_store() -> "CursorStore":
    """Return a store in an empty SQLite database, with its tables."""
    from zeroeventhub.testing import store_of

    return store_of()


@pytest.fixture
def async_cursor_store() -> "CursorStore":
    """Return a store for an AsyncConsumer in an empty SQLite database, with its tables."""
    from zeroeventhub.testing import async_store_of

    return async_store_of()


@pytest.fixture
def consumer_pauses() -> "Iterator[list[Pause]]":
    """Let the pauses of all consumers take no time in the test, and list them."""
    from zeroeventhub.testing import no_pauses

    with no_pauses() as pauses:
        yield pauses
