"""Pages that are kept for the next who ask for them, over real HTTP."""

from harness.readers import BOOK_PAGE, get, mounted, read
from harness.waiting import until

from zeroeventhub import FIRST, Capacity


def test_kept_page_is_the_same_page(book):
    """A page that is kept has the bytes, the tag and the headers that it had, without a read."""
    with mounted(book) as url:
        first, again = get(url, cursor="2"), get(url, cursor="2")
        assert first.content == again.content
        for name in ("etag", "cache-control", "content-type"):
            assert first.headers[name] == again.headers[name]
        held = get(url, cursor="2", headers={"If-None-Match": first.headers["etag"]})
        assert (held.status_code, held.content) == (304, b"")
        assert get(url, cursor="2", pagesizehint=7).content == first.content
    assert book.asked == [2, 2]


def test_page_that_may_be_another_is_not_kept(book):
    """A page at the head is read each time, and so is the first one, which may be trimmed."""
    pages = [FIRST, str(book.last - 1), str(book.last)]
    with mounted(book) as url:
        for cursor in pages * 2:
            assert get(url, cursor=cursor).headers["cache-control"] == "no-store"
    assert book.asked == [0, book.last - 1, book.last] * 2


def test_pages_are_kept_within_their_bytes(book):
    """What there is no room for goes, and first what was not asked for the longest."""
    with mounted(book, capacity=Capacity(kept_bytes=2 * BOOK_PAGE)) as url:
        read(url, 1, 3, 1, 5, 1, 3)
    assert book.asked == [1, 3, 5, 3]
    book.asked.clear()
    with mounted(book, capacity=Capacity(kept_bytes=BOOK_PAGE - 1)) as url:
        read(url, 1, 1)
    assert book.asked == [1, 1]


def test_page_that_many_ask_for_takes_its_room_once(book, pool):
    """A page read once for several readers leaves room for as many others as before."""
    capacity = Capacity(kept_bytes=2 * BOOK_PAGE, connections=1)
    with mounted(book, capacity=capacity) as url:
        with book.holding(2):
            asking = [pool.submit(read, url, 2) for _ in range(8)]
            until(lambda: book.asked == [2], "the page is being read")
        for one in asking:
            one.result()
        read(url, 4)
        book.asked.clear()
        read(url, 2, 4, 2, 4)
    assert book.asked == []


def test_pages_dropped_for_their_time_leave_their_room(book):
    """A page is read again when its time is over, and as many are kept after that as before."""
    with mounted(book, capacity=Capacity(kept_bytes=2 * BOOK_PAGE, kept_seconds=0.3)) as url:
        for _ in range(3):
            book.asked.clear()
            until(lambda: read(url, 1, 4) or {1, 4} <= {*book.asked}, "both are read again", 5)

        def are_kept():
            read(url, 1, 4)
            book.asked.clear()
            read(url, 1, 4)
            return book.asked == []

        until(are_kept, "both are kept", 5)


def test_another_history_keeps_nothing(book):
    """Once a cursor is of another history pages are read again, and kept in as much room."""
    book.gone = 7
    with mounted(book, capacity=Capacity(kept_bytes=2 * BOOK_PAGE)) as url:
        for _ in range(3):
            read(url, 2, 4, 2, 4)
            assert get(url, cursor="7").status_code == 410
    assert book.asked == [2, 4, 7] * 3


def test_each_question_has_a_page_of_its_own(book):
    """A page is kept for its cursor, its size and its types, and answers nothing else."""
    with mounted(book) as url:
        for _ in range(2):
            for asked in ({}, {"pagesizehint": 3}, {"event-types": "a"}, {"event-types": "b"}):
                assert get(url, cursor="2", **asked).status_code == 200
    assert book.asked == [2] * 4
