"""How much of the package a page passes through, once a consumer is under way."""

import sys
import threading
from pathlib import Path

import httpx
import pytest

import zeroeventhub
from zeroeventhub import ConnectionPool

PACKAGE = Path(zeroeventhub.__file__).parent
ROOMS = ("client/", "consumer/", "databases/", "protocol.py", "wire/")
CONSUMER = tuple(f"{PACKAGE}/{room}" for room in ROOMS)
"""What the consumer's half is made of; the publisher's runs in the same process."""


TRIES = 3
"""On a busy machine, pages pass through a few functions more: the shortest way counts."""


@pytest.mark.parametrize(
    ("http", "functions", "files"), [(httpx.Client, 45, 12), (ConnectionPool, 66, 13)]
)
def test_page_passes_through_few_functions_and_files(sync_shop, http, functions, files):
    """From the feed to the commit, with its data decoded, a page takes few calls into few files."""
    passed, pages = set(), []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and 5 < len(pages) < 15 and code.co_filename.startswith(CONSUMER):
            passed.add((code.co_filename, code.co_qualname))

    def apply(connection, page):
        pages.append(page.cursor)
        for one in page.events:
            assert one.data

    def measure():
        passed.clear()
        pages.clear()
        sync_shop.feed.place(200)
        before = sys.getprofile(), threading.getprofile()
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            sync_shop.run(apply, limit=10, http=http)
        finally:
            sys.setprofile(before[0])
            threading.setprofile(before[1])
        assert len(pages) == 20
        return {*passed}

    shortest = min((measure() for _ in range(TRIES)), key=len)
    assert len(shortest) <= functions, sorted(shortest)
    assert len({file for file, _ in shortest}) <= files
