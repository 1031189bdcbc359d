"""Archives in folders, in memory and on a server that speaks S3."""

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from obstore.store import MemoryStore, S3Store

from zeroeventhub.archive import Archive
from zeroeventhub.archive.draft import Draft
from zeroeventhub.archive.objects import Objects

KINDS = ("folder", "memory", "s3")

PATIENCE = 60
"""Seconds in which a server starts."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the URL of a server that speaks S3 and refuses to overwrite what must not be."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A process of its own: it is not part of what is tested.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("The server that speaks S3 did not start.")
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code < 500
    except httpx.TransportError:
        return False


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
    """Return an empty store of one of KINDS, or the folder of one."""
    if kind == "folder":
        return request.getfixturevalue("tmp_path") / "archive"
    if kind == "memory":
        return MemoryStore()
    return s3_store(request.getfixturevalue("s3_url"))


def made(after, upto, partitions=1, **columns):
    """Make a segment with an event at each position."""
    draft = Draft()
    positions = range(after + 1, upto + 1)
    given = {"position": positions, "partition": [one % partitions for one in positions]}
    given["data"] = [f'{{"n":{one}}}' for one in positions]
    draft.add(given | columns)
    return draft.make(after, upto, f"1-{upto}")


class Died(BaseException):
    """What happens to a process that is killed: nothing of its own runs any more."""


class DyingObjects(Objects):
    """Objects of a process that dies before or after one of its changes.

    Args:
        store: where they are.
        step: which change it dies at; 0 is before the first, 1 after it, 2 before the second.
    """

    def __init__(self, store, step) -> None:
        super().__init__(store)
        self.steps = step

    def create(self, path, content):
        """Create an object, if the process lives."""
        return self._change(super().create, path, content)

    def delete(self, paths):
        """Delete objects one by one, as long as the process lives."""
        for path in paths:
            self._change(super().delete, [path])

    def _change(self, change, *arguments):
        self._step()
        found = change(*arguments)
        self._step()
        return found

    def _step(self):
        if self.steps == 0:
            raise Died
        self.steps -= 1


def dying(store, step, **options) -> Archive:
    """Return the archive of a process that dies at a step."""
    return Archive(DyingObjects(store, step), **options)


def positions_in(archive) -> list[int]:
    """Read the positions of all events that an archive has, in the order of its segments."""
    archive.look()
    found = []
    for segment in archive.manifest.segments:
        footer = archive.load_footer(segment)
        own = []
        for number in range(len(footer.entries)):
            own += archive.load_group(segment, footer, number).positions
        found += sorted(own)
    return found
