"""Streams that stay open: who reads them is asked again."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import pytest
from harness.readers import READER, TOKEN, fill, open_stream, served
from harness.shop import place
from starlette.exceptions import HTTPException

from zeroeventhub import Principal
from zeroeventhub.errors import Forbidden, Unauthorized
from zeroeventhub.server import server_sent_events

PATIENCE = 60


@pytest.fixture
def shop(sqlite):
    """An engine of a database with ten orders."""
    return fill(sqlite)


class Directory:
    """Be a hook whose mind can be changed; it counts how often it is asked."""

    def __init__(self):
        self.answer = READER
        self.asked = 0

    async def __call__(self, request):
        """Say what it was told to say."""
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


CHANGES = {
    "refused": Unauthorized(f"Nobody knows {TOKEN}."),
    "forbidden": Forbidden(f"Not {TOKEN}."),
    "refused by the host": HTTPException(403, TOKEN),
    "nothing": None,
    "broken": KeyError(TOKEN),
    "other rights": Principal(name="reader", types={"paid"}),
    "another reader": Principal(name="other"),
}


@contextmanager
def open_stream_of(url, directory):
    """Open a stream; yield what it will have received when it ends, which it does at last."""
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(open_stream, url, lambda _: False)
        try:
            yield received
        finally:
            directory.answer = None


def until_asked(directory, times, meanwhile=lambda: None):
    """Wait until a hook was asked so often."""
    ending = time.monotonic() + PATIENCE
    while directory.asked < times:
        assert time.monotonic() < ending
        meanwhile()
        time.sleep(0.03)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_open_stream_ends_with_the_rights_of_its_reader(shop, change, monkeypatch, caplog):
    """A stream asks again who reads, and ends when that one may not, or may see something else."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.3)
    directory = Directory()
    with served(shop, directory) as url, open_stream_of(url, directory) as received:
        until_asked(directory, 3)
        assert not received.done()
        directory.answer = change
        assert received.result(PATIENCE).count(b"data: ") == 10
    assert TOKEN not in caplog.text


def test_busy_stream_asks_again_from_time_to_time(shop, monkeypatch):
    """A stream that always has something to send asks who reads no more often than an idle one."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.5)
    directory, numbers = Directory(), count(10)

    def write():
        with shop.begin() as connection:
            place(connection, 1, first=next(numbers))

    began = time.monotonic()
    with served(shop, directory) as url, open_stream_of(url, directory) as received:
        until_asked(directory, 4, write)
        assert directory.asked <= (time.monotonic() - began) / 0.5 + 2
        directory.answer = None
        asked = directory.asked
        until_asked(directory, asked + 1, write)
        ended = received.result(PATIENCE)
    last = next(numbers)
    with shop.begin() as connection:
        place(connection, 1, first=last)
    assert b'"n": 10}' in ended
    assert f'"n":{last}}}'.encode() not in ended
