"""How much of the package a page passes through at a publisher, once a reader is under way."""

import sys
import threading
from collections import Counter
from pathlib import Path

import httpx
from harness.readers import cursor_of, mounted, page_url
from harness.shop import fill, orders
from sqlalchemy import event

import zeroeventhub
from zeroeventhub import FIRST, TableFeed

PACKAGE = str(Path(zeroeventhub.__file__).parent)
FUNCTIONS, FILES, CALLS, STATEMENTS = 82, 21, 42, 0.3
BEFORE, PAGES, TRIES = 20, 32, 3
"""On a busy machine, pages take a few calls more: of several runs of pages, the shortest counts."""


def test_page_passes_through_few_functions_and_statements(postgresql, monkeypatch):
    """From the table to the answer, a page takes few calls into few files, and few statements."""
    # What is done so many times a second is done for more pages on a quick machine.
    monkeypatch.setattr("zeroeventhub.server.pages.VOUCHED", 60)
    runs, read = [(Counter(), []) for _ in range(TRIES + 1)], 0

    def run():
        return runs[(read - BEFORE) // PAGES] if read > BEFORE else (Counter(), [])

    def note(frame, kind, _):
        code = frame.f_code
        if kind == "call" and code.co_filename.startswith(PACKAGE):
            run()[0][code.co_filename, code.co_qualname] += 1

    @event.listens_for(postgresql, "before_cursor_execute")
    def tell(connection, cursor, statement, *_):
        run()[1].append(statement)

    fill(postgresql, (BEFORE + 2 * TRIES * PAGES) * 10)  # what is at the end is read otherwise
    before, cursor = threading.getprofile(), FIRST
    threading.setprofile(note)
    try:
        feed = TableFeed(orders, data="data")
        with mounted(feed, postgresql) as url, httpx.Client() as session:
            while read < BEFORE + TRIES * PAGES:
                cursor = cursor_of(session.get(page_url(url, cursor=cursor, pagesizehint=10)))
                read += 1
    finally:
        threading.setprofile(before)
        sys.setprofile(None)
    calls, statements = min(runs[:TRIES], key=lambda one: one[0].total())
    found = f"{len(calls)} functions, {calls.total() / PAGES} calls, {len(statements)} statements"
    assert len(calls) <= FUNCTIONS, found
    assert len({file for file, _ in calls}) <= FILES, found
    assert calls.total() <= CALLS * PAGES, found
    assert len(statements) <= STATEMENTS * PAGES, found
