"""Archives in folders, in memory and on a server that speaks S3."""

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from obstore.store import MemoryStore, S3Store
from sqlalchemy import insert

from harness.command_line import logged
from harness.shop import metadata, orders
from zeroeventhub import Retention, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.archive.objects import Objects
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
