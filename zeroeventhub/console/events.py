"""Events for the console: found by cursor, time, id or key, and shown."""

import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import accumulate
from typing import Any
from urllib.parse import urlencode

import msgspec

from zeroeventhub.console.feeds import Reader
from zeroeventhub.errors import BadCursor, BadRequest, ConfigurationError, NotFound
from zeroeventhub.extensions import EVENT_TYPES
from zeroeventhub.protocol import FIRST, Event, TypeFilter
from zeroeventhub.server.request import NO_PARTITION
from zeroeventhub.times import FORMS, moment
from zeroeventhub.wire.cloud_event import event_id, event_key, event_time, event_type

PAGE, LARGEST_PAGE = 50, 500
"""Events that the console shows at once, by default and at most."""

SEARCHED = 10_000
"""Events that a search by id reads at most, of a feed that cannot look one up."""

LONGEST_WAIT = 20
"""Seconds that a live view waits at the head of a feed, at most."""

LONGEST = 64 * 1024
"""Characters of an event that are shown; the rest is for programs."""

DEEPEST = 32
"""Levels of an event's JSON up to which it is indented: line breaks multiply a deeper one."""

_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_NO_BRACKETS = bytes({*range(256)} - {*b"[{]}"})


@dataclass(frozen=True, kw_only=True)
class EventQuery:
    """Which events to show: from a cursor, a time or an id on, or those of a key."""

    partition: int | None  # None for the first one
    cursor: str  # where to begin; empty for the first event
    moment: datetime | None  # begin with the events of this moment or later
    id: str  # begin with the event of this id
    type: str  # empty for all
    key: str  # whose history to show; empty for the events of a partition
    after_version: int  # of the key; 0 for its first event
    limit: int
    wait: float  # seconds to wait for events at the head


async def events(reader: Reader, asked: EventQuery, url: str) -> dict[str, Any]:
    """Return the events that somebody asks for, and how a program at `url` asks for the same.

    Raises:
        BadRequest: there is no such partition, or no event of the id.
        ConfigurationError: the feed lacks an extension that the question needs.
    """
    client = reader.client
    info = await client.discover()
    ids = [one.id for one in info.partitions]
    found: dict[str, Any] = {
        "name": reader.feed.name,
        "partitions": ids,
        "extensions": sorted(info.extensions),
        "events": [],
        **dict.fromkeys(("partition", "cursor", "next", "key", "after_version", "searched")),
        "caught_up": False,
        **dict.fromkeys(("curl", "python")),
    }
    if asked.key:
        return found | await _history(reader, asked, url)
    if not ids:
        return found
    number = ids[0] if asked.partition is None else asked.partition
    if number not in ids:
        raise BadRequest(NO_PARTITION)
    cursor = asked.cursor or FIRST
    if asked.id:
        number, cursor, found["searched"] = await _place_of(reader, asked.id, number, cursor)
    elif asked.moment is not None:
        cursor = await client.cursor_at(asked.moment, number)
    types = TypeFilter({asked.type}) if asked.type else None
    if types is not None and EVENT_TYPES not in info.extensions:
        raise ConfigurationError("This feed does not know the types of its events.")
    page = await client.fetch(number, cursor, limit=asked.limit, types=types, wait=asked.wait)
    query = {"token": info.token, "partition": number, "cursor": cursor}
    query |= {"pagesizehint": asked.limit, **({"event-types": asked.type} if types else {})}
    of_type = f", types=TypeFilter({{{asked.type!r}}})" if types else ""
    imported = "Client, TypeFilter" if types else "Client"
    return found | {
        "partition": number,
        "cursor": cursor,
        "events": [*map(shown, page.events)],
        "next": page.cursor,
        "caught_up": page.caught_up,
        "curl": f"curl {shlex.quote(f'{url}/events?{urlencode(query)}')}",
        "python": f"from zeroeventhub import {imported}\n\nclient = Client({url!r})\n"
        f"page = client.fetch({number}, {cursor!r}, limit={asked.limit}{of_type})\n"
        "for event in page.events:\n    print(event.data)",
    }


async def _history(reader: Reader, asked: EventQuery, url: str) -> dict[str, Any]:
    """Return the events of a key, oldest first."""
    page = await reader.client.read_key(
        asked.key, after_version=asked.after_version, limit=asked.limit
    )
    query = {"key": asked.key, "after-version": asked.after_version, "pagesizehint": asked.limit}
    found = [
        {**shown(event), "version": version}
        for version, event in zip(page.versions, page.events, strict=True)
    ]
    return {
        "key": asked.key,
        "events": found,
        "after_version": page.versions[-1] if page.more else None,
        "curl": f"curl {shlex.quote(f'{url}/key-history?{urlencode(query)}')}",
        "python": f"from zeroeventhub import Client\n\nclient = Client({url!r})\n"
        f"page = client.read_key({asked.key!r}, after_version={asked.after_version}, "
        f"limit={asked.limit})\nfor event in page.events:\n    print(event.data)",
    }


async def _place_of(
    reader: Reader, wanted: str, number: int, cursor: str
) -> tuple[int, str, int | None]:
    """Return the partition of an event, the cursor before it, and how many were read to find it."""
    if reader.http is not None:
        try:
            found = await reader.own("find", id=wanted)
        except NotFound:
            pass
        else:
            return found["partition"], found["before"], None
    read = 0
    while read < SEARCHED:
        page = await reader.client.fetch(number, cursor, limit=LARGEST_PAGE)
        for place, event in enumerate(page.events):
            if event_id(event) == wanted:
                if place:
                    before = await reader.client.fetch(number, cursor, limit=place)
                    cursor = before.cursor
                return number, cursor, read + place
        read += len(page.events)
        if page.caught_up or page.cursor == cursor:
            break
        cursor = page.cursor
    raise BadCursor(
        f"None of {read:,} events of partition {number} has this id; a search goes on from the "
        f"cursor {cursor}."
    )


def shown(event: Event) -> dict[str, Any]:
    """Return an event as it is shown: its line, the same with line breaks, and its attributes."""
    raw = event.raw.decode()
    is_indented = len(raw) <= LONGEST and not _is_deep(event.raw)
    pretty = msgspec.json.format(event.raw, indent=2).decode() if is_indented else raw
    return {
        "id": event_id(event),
        "type": event_type(event),
        "key": event_key(event),
        "time": event_time(event),
        "raw": raw[:LONGEST],
        "pretty": pretty[:LONGEST],
        "cut": max(0, len(raw) - LONGEST),
    }


def _is_deep(raw: bytes) -> bool:
    steps = _TEXTS.sub(b"", raw).translate(_STEPS, _NO_BRACKETS)
    levels = accumulate(steps, lambda level, step: level + step - 1, initial=0)
    return max(levels) > DEEPEST


def moment_in(text: str, zone: str = "") -> datetime:
    """Read a moment of a form or an address; return it in UTC.

    Args:
        text: the moment; without a time zone, in the one of the browser.
        zone: how many minutes the browser's clock is ahead of UTC; empty for none.

    Raises:
        BadRequest: the text is no moment.
    """
    try:
        return moment(text, timezone(timedelta(minutes=int(zone or "0")))).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequest(f"A moment is written as {FORMS}.") from None
