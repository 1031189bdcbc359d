"""Archives in folders, in memory and on a server that speaks S3."""

import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from obstore.store import MemoryStore, S3Store
from sqlalchemy import insert

from harness.command_line import logged
from harness.shop import metadata, orders
from harness.trimmed import position_of
from zeroeventhub import FIRST, LAST, Retention, TableFeed, TypeFilter
from zeroeventhub.archive import Archive
from zeroeventhub.archive.objects import Objects
from zeroeventhub.errors import ZeroEventHubError
from zeroeventhub.settings import Capacity

PARTITIONS = 3
KINDS = ["placed", "Paid", None, "sent", ""]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = [(number % PARTITIONS, number, number % 5) for number in range(36)]
"""Thirty-six orders, each with a partition, a number for its type, and a length."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the URL of a server that speaks S3 and refuses to overwrite what must not be."""
    # A process of its own: it is not part of what is tested.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with TemporaryDirectory() as folder, logged(command, Path(folder) / "log") as server:
        yield server.url


def s3_store(url: str) -> S3Store:
    """Create a bucket on a server; return the store in it."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    signed = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request"
    headers = {"Authorization": f"{signed}, SignedHeaders=host, Signature=any"}
    httpx.put(f"{url}/{bucket}", headers=headers).raise_for_status()
    return S3Store(
        bucket,
        endpoint=url,
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        client_options={"allow_http": True},
    )


def store_for(kind, request):
    """Return an empty store: in memory, on a server that speaks S3, or the path of a folder."""
    if kind == "folder":
        return request.getfixturevalue("tmp_path") / "archive"
    if kind == "memory":
        return MemoryStore()
    return s3_store(request.getfixturevalue("s3_url"))


def made(after, upto, partitions=1, **columns):
    """Make a segment with an event at each position."""
    writer = Archive(MemoryStore()).segment_writer()
    positions = range(after + 1, upto + 1)
    given = {"position": positions, "partition": [one % partitions for one in positions]}
    given["data"] = [f'{{"n":{one}}}' for one in positions]
    writer.add(given | columns)
    return writer.finish(after, upto, f"1-{upto}")


def bare(position):
    """Return the cursor after an erased event."""
    return f"1-{position}"


class Died(BaseException):
    """What happens to a process that is killed: nothing of its own runs any more."""


def dying(store, step, **options) -> Archive:
    """Return the archive of a process that dies at a step: before or after one of its changes."""
    objects, steps = Objects(store), iter(range(step))

    def live(done=None):
        if next(steps, None) is None:
            raise Died
        return done

    def create(path, content, create=objects.create):
        live()
        return live(create(path, content))

    def delete(paths, delete=objects.delete):
        for path in paths:
            live()
            live(delete([path]))

    objects.create, objects.delete = create, delete
    return Archive(objects, **options)


def positions_in(archive) -> list[int]:
    """Read the positions of all events that an archive has, in the order of its segments."""
    found = []
    for segment in archive.look().segments:
        footer = archive.load(segment, "footer")
        own = []
        for number in range(len(footer.entries)):
            own += archive.load(segment, number).positions
        found += sorted(own)
    return found


def source(archive, **options):
    """Return a feed over orders, with all that an event can have."""
    given = {"data": "data", "partition": "part", "partitions": PARTITIONS}
    given |= {"type": "kind", "time": "placed", "retention": Retention(), "archive": archive}
    return TableFeed(orders, **{**given, **options})


def place(connection, *events):
    """Append orders, each with a partition, a number for its type, and a length."""
    rows = [
        {
            "part": part,
            "kind": KINDS[kind % len(KINDS)],
            "customer": f"c{number % 4}",
            "placed": BEGAN + timedelta(minutes=number - kind % 3),
            "data": {"n": number, "text": "é" * length},
        }
        for number, (part, kind, length) in enumerate(events)
    ]
    if rows:
        connection.execute(insert(orders), rows)


def opened(engine, archive, events=EVENTS, page_bytes=200, **options):
    """Return a feed of some events, in a database that is empty."""
    metadata.create_all(engine)
    feed = source(archive, **options)
    with engine.begin() as connection:
        feed.install(connection)
        place(connection, *events)
    return feed.bind(engine, Capacity(page_bytes=page_bytes))


FILTERS = [
    None,
    TypeFilter(frozenset({"placed"})),
    TypeFilter(frozenset({"paid", "order"})),
    TypeFilter(frozenset({"paid"}), skip=True),
]


def pages_from(feed, partition, cursor, limit, count):
    """Read so many pages, or up to the head; of an archive, one call may return fewer."""
    pages = feed.read_pages(partition, cursor, limit, count)
    while len(pages) < count and not pages[-1].caught_up:
        pages += feed.read_pages(partition, pages[-1].cursor, limit, count - len(pages))
    return pages


def every_answer(feed, cursors):
    """Ask a feed every question at each of some cursors; return its answers and its errors."""
    answers = {}

    def ask(name, *arguments, **options):
        try:
            method = partial(pages_from, feed) if name == "pages" else getattr(feed, name)
            found = method(*arguments, **options)
            if name == "lag":
                # When the first of them happened, to the minute.
                first = found.seconds and round((time.time() - found.seconds) / 60)
                found = found.events, found.exact, first
        except ZeroEventHubError as error:
            found = type(error), str(error)
        answers[name, arguments, str(options)] = found

    for partition in range(PARTITIONS):
        for cursor in cursors:
            for types, limit in zip(FILTERS, [2, 50, 2, 50], strict=True):
                ask("read", partition, cursor, limit, types=types)
            ask("read", partition, cursor, 7, types=FILTERS[-1], each=True)
            ask("pages", partition, cursor, 2, 4)
            ask("lag", partition, cursor)
            ask("cursor_of_count", partition, cursor, 4)
            ask("splits", partition, 3, start=cursor)
            ask("vouch", (cursor, cursors[-1]))
            for stop in cursors[1::3]:
                ask("read", partition, cursor, 50, stop=stop)
                ask("splits", partition, 2, start=cursor, stop=stop)
                ask("cursor_of_count", partition, cursor, 100, stop=stop)
        ask("read", partition, LAST, 1)
        for minute in range(-2, 40, 12):
            ask("cursor_at", BEGAN + timedelta(minutes=minute), partition)
            ask("cursor_of", str(minute + 3), partition)
            ask("cursor_of", str(minute + 3), partition, types=FILTERS[1])
            ask("cursor_after", minute + 3)
    return answers


def assert_same(after, before):
    """Show that all answers are what they were."""
    assert [(key, found) for key, found in after.items() if found != before[key]] == []


def cursors_of(feed):
    """Return the cursors after all events, in order."""
    found = {FIRST: 0}
    for partition in range(PARTITIONS):
        cursor = FIRST
        while not (page := feed.read(partition, cursor, 1)).caught_up:
            cursor = page.cursor
            found[cursor] = position_of(cursor)
        found[page.cursor] = position_of(page.cursor)
    found |= {"1-3": 3, "2-4-0000-0123456789": 4, f"2-5-{'0' * 4}-{'1' * 10}": 5, "1-999": 999}
    in_order = sorted(found, key=found.get)
    return in_order[:: 1 + len(in_order) // 6]
