"""How much of the package a page passes through, once a consumer is under way."""

import sys
import threading
from pathlib import Path

import zeroeventhub

PACKAGE = str(Path(zeroeventhub.__file__).parent)
FUNCTIONS, FILES = 45, 12


def test_page_passes_through_few_functions_and_files(sync_shop):
    """From the feed to the commit, with its data decoded, a page takes few calls into few files."""
    passed, pages = set(), []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and 5 < len(pages) < 15 and code.co_filename.startswith(PACKAGE):
            passed.add((code.co_filename, code.co_qualname))

    def apply(connection, page):
        pages.append(page.cursor)
        for one in page.events:
            assert one.data

    sync_shop.feed.place(200)
    before = sys.getprofile(), threading.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        sync_shop.run(apply, limit=10)
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    mine = {(file, name) for file, name in passed if is_of_consumer(file)}
    assert len(pages) == 20
    assert len(mine) <= FUNCTIONS
    assert len({file for file, _ in mine}) <= FILES


def is_of_consumer(file):
    """Tell a file of the consumer's half from one of the publisher in the same process."""
    room = Path(file).relative_to(PACKAGE).parts[0]
    return room in {"client", "consumer", "databases", "protocol.py", "wire"}
