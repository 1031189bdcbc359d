"""Answers on their way to readers that take them slowly, or not at all."""

import time
from contextlib import ExitStack

import httpx
from harness.readers import cursor_of, get, mounted, page_url
from harness.stalled import ask, everything
from harness.waiting import until

from zeroeventhub import Capacity, Event, FeedInfo, Page

MEBIBYTE = 1024 * 1024


class Large:
    """A feed of one's own whose pages have some mebibytes, all the same."""

    def __init__(self, size):
        self.page = Page([Event(b'{"n":"%b"}' % (b"x" * size))], "1")
        self.pages = 0

    async def info(self):
        return FeedInfo.of(1)

    async def read(self, partition, cursor, limit):
        if cursor == "head":
            return Page([], "head", caught_up=True)
        self.pages += limit > 1
        return self.page


def test_answers_on_their_way_are_bounded():
    """Readers that do not read fill the room there is, round after round, and others are told to
    come again.
    """
    feed = Large(6 * MEBIBYTE)
    room = {"sending_bytes": 20 * MEBIBYTE, "page_bytes": 6 * MEBIBYTE, "sending_seconds": 60}
    capacity = Capacity(connections=1, patience=0.3, **room)
    with mounted(feed, capacity=capacity) as url:
        for _ in range(2):
            until(lambda: get(url).status_code == 200, "there is room")
            feed.pages = 0
            with ExitStack() as stack:
                for number in range(8):
                    stack.enter_context(ask(page_url(url, cursor=number), room=4096))
                until(lambda: feed.pages >= 3, "three pages are on their way")
                refused = get(url)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert feed.pages in {3, 4}  # one more may be read for each connection
                # What has no events needs no room.
                assert get(url, cursor="head").status_code == 200


def test_page_larger_than_the_room_is_sent_alone():
    """What is larger than all there is room for is sent when nothing else is on its way."""
    feed = Large(3 * MEBIBYTE)
    capacity = Capacity(sending_bytes=MEBIBYTE, page_bytes=MEBIBYTE, patience=0.3)
    with mounted(feed, capacity=capacity) as url:
        for _ in range(3):
            assert len(get(url).content) > 3 * MEBIBYTE


def test_answer_that_is_not_taken_is_given_up(caplog):
    """A reader that takes nothing loses its connection, and never has a page that looks whole."""
    caplog.set_level("INFO", "zeroeventhub.server")
    feed = Large(16 * MEBIBYTE)
    with mounted(feed, capacity=Capacity(sending_seconds=0.4)) as url:
        with ask(page_url(url), room=4096) as reader:
            until(lambda: "An answer was given up" in caplog.text, "the answer is given up", 10)
            received = everything(reader)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(body) < length
        assert len(get(url).content) == length


def test_slow_reader_that_takes_something_is_served():
    """A reader may take long for a page, as long as it goes on taking pieces of it."""
    size, patience = 12 * MEBIBYTE, 1.0
    feed, began = Large(size), time.monotonic()
    with (
        mounted(feed, capacity=Capacity(sending_seconds=patience)) as url,
        ask(page_url(url), room=64 * 1024) as reader,
    ):
        received = 0
        while received < size:
            chunk = reader.recv(MEBIBYTE)
            assert chunk, "the answer was given up"
            received += len(chunk)
            if time.monotonic() - began < 2 * patience:
                time.sleep(0.02)
    assert time.monotonic() - began > patience


def test_page_is_whole_however_many_pieces_it_has():
    """A page is sent in pieces that make the whole page, of any length."""
    piece = 64 * 1024
    for size in (1, piece - 100, piece, piece + 1, 5 * piece, 9 * piece + 7):
        with mounted(Large(size)) as url:
            whole = get(url)
            assert whole.content.count(b"x") == size
            assert cursor_of(whole) == "1"
            head = httpx.head(page_url(url))
            assert (head.content, head.headers["content-length"]) == (b"", str(len(whole.content)))
