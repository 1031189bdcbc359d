"""Feeds of tests: events in memory, a log in SQLite, and the pages that a test requests itself."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import httpx
from sqlalchemy import MetaData

from zeroeventhub.errors import BadCursor, printable
from zeroeventhub.event_log import EventLog
from zeroeventhub.new_events import NewEvent
from zeroeventhub.protocol import CAUGHT_UP, FIRST, LAST, WAIT, Event, FeedInfo, Page
from zeroeventhub.testing.stores import sqlite_engine
from zeroeventhub.wire.ndjson import PageDecoder
from zeroeventhub.wire.problem import problem_in


class MemoryFeed:
    """Publish events that are kept in memory; `feed_of` makes it.

    Requests with `wait` are answered as soon as an event is appended, from any thread.

    Example:
        feed = MemoryFeed([[{"order": 1}]])
        feed.append({"order": 2})
        assert [event.data["order"] for event in feed.read(0, FIRST, 10).events] == [1, 2]

    Args:
        partitions: the events of each partition, in order: what Event.of takes, or Events.
        exactly_once: whether the feed promises never to publish an event twice.
    """

    def __init__(self, partitions: Iterable[Iterable[Any]], *, exactly_once: bool = True) -> None:
        self._logs = [list(map(event_of, events)) for events in partitions]
        described = FeedInfo.of(len(self._logs))
        self._info = replace(
            described, exactly_once=exactly_once, extensions=frozenset({CAUGHT_UP, WAIT})
        )
        self._listeners: list[Callable[[], None]] = []

    def append(self, *events: Any, partition: int = 0) -> None:
        """Publish events: what Event.of takes, or Events."""
        self._logs[partition] += map(event_of, events)
        for notify in self._listeners:
            notify()

    def info(self) -> FeedInfo:
        """Describe the feed."""
        return self._info

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor.

        Raises:
            BadCursor: the feed has not given the cursor.
        """
        log = self._logs[partition]
        place = {FIRST: "0", LAST: str(len(log))}.get(cursor, cursor)
        if not (place.isascii() and place.isdigit() and int(place) <= len(log)):
            raise BadCursor("A cursor of this feed is the number of the events before it.")
        events = log[int(place) : int(place) + limit]
        end = int(place) + len(events)
        return Page(events, str(end), caught_up=end == len(log))

    def head(self) -> int:
        """Return the number of all events."""
        return sum(map(len, self._logs))

    def on_commit(self, notify: Callable[[], None], /) -> None:
        """Call a function whenever events are appended."""
        self._listeners.append(notify)


def feed_of(events: Iterable[Any] = (), *, exactly_once: bool = True) -> MemoryFeed:
    """Return a feed of events in memory, for `client_of`, `feed_routes`, or to be read as it is.

    Args:
        events: what Event.of takes, or Events; or a list of such lists, one for each partition.
        exactly_once: whether the feed promises never to publish an event twice.
    """
    return MemoryFeed(partitions_of(events), exactly_once=exactly_once)


def partitions_of(events: Iterable[Any]) -> list[list[Event]]:
    """Return the events of each partition; a list of anything but lists is that of one."""
    given = list(events)
    partitions = given if given and all(isinstance(one, list) for one in given) else [given]
    return [list(map(event_of, events)) for events in partitions]


def event_of(data: Any) -> Event:
    """Return an event as it is, and make one of anything else."""
    return data if isinstance(data, Event) else Event.of(data)


class LogFeed:
    """Publish events from a table of SQLite, as in production: an EventLog and its feed.

    Example:
        log_feed = LogFeed(partitions=2)
        log_feed.append(NewEvent("order.paid", {"order": 17}, key="17"))
        page = client_of(log_feed.feed).fetch(1, FIRST)

    Args:
        partitions: the number of partitions.
        options: options of a TableFeed, such as `cloudevents`.

    Attributes:
        engine: the engine of the database, an empty one.
        log: the log.
        feed: its feed, which reads through the engine.
    """

    def __init__(self, partitions: int = 1, **options: Any) -> None:
        metadata = MetaData()
        self.engine = sqlite_engine()
        self.log = EventLog(metadata, "events", partitions=partitions)
        metadata.create_all(self.engine)
        self.feed = self.log.feed(**options).bind(self.engine)

    def append(self, *events: NewEvent) -> None:
        """Append events in a transaction of their own."""
        with self.engine.begin() as connection:
            self.log.append(connection, events)


def events_of(response: Any, partition: int = 0) -> Page:
    """Return the events and the cursor of a page that a test has requested by itself.

    Args:
        response: the response of a test client, such as those of Starlette, FastAPI, Flask and
            httpx, with status 200; or the bytes of its body.
        partition: the partition that was requested, for pages of ZeroEventHub v1.

    Raises:
        AssertionError: the response has another status.
        CutPage: the page has no checkpoint.
        ProtocolError: it is no page.
    """
    status = getattr(response, "status_code", httpx.codes.OK)
    body = response if isinstance(response, bytes) else _body_of(response)
    if status != httpx.codes.OK:
        detail = problem_in(body).detail or printable(body.decode(errors="replace"), longest=300)
        raise AssertionError(f"A page was requested, and status {status} came: {detail}")
    decoder = PageDecoder(partition)
    decoder.feed(body)
    return decoder.page()


def _body_of(response: Any) -> bytes:
    body: bytes = response.content if hasattr(response, "content") else response.data
    return body
