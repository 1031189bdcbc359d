"""Pages that are kept, and pages that are read before anybody asks, over real HTTP."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import Event, FeedInfo, Principal, feed_routes
from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import Diverged, FeedFailure, Unavailable
from zeroeventhub.protocol import EVENT_TYPES, FIRST, Page
from zeroeventhub.server import read_ahead
from zeroeventhub.server.read_ahead import PAGES, VOUCHED

LAST_PAGE = 9
LONG = 2.0
PATIENCE = 20


class Book:
    """A feed whose pages have one event each, and which remembers what was read of it."""

    def __init__(self):
        self.asked = []
        self.broken = self.gone = self.slow = None
        self.turned = threading.Event()

    def info(self):
        """Describe the feed."""
        described = FeedInfo.of(1)
        return FeedInfo(described.partitions, described.token, extensions=frozenset({EVENT_TYPES}))

    def vouch(self, cursors):
        """Have one history for ever."""

    def read(self, partition, cursor, limit, *, types=None):
        """Read the page behind a cursor, which is its number."""
        number = 0 if cursor == FIRST else int(cursor)
        self.asked.append(number)
        if number == self.slow:
            self.turned.wait(PATIENCE)
        if number == self.broken:
            raise FeedFailure("A page is torn.")
        if number == self.gone:
            raise Diverged("This is another book.")
        if number == LAST_PAGE:
            return Page([], cursor, caught_up=True)
        return Page([Event(b"%d" % number)], str(number + 1), full=number + 1 < LAST_PAGE)


@pytest.fixture
def book():
    """A book."""
    return Book()


def until(true):
    """Wait until something is true."""
    ending = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ending
        time.sleep(0.01)


def opened(book, **options):
    """Serve a book."""
    return serving(Starlette(routes=feed_routes("/book", book, **options)))


def get(url, cursor, *, method="GET", **parameters):
    """Ask for a page."""
    parameters = {"token": "1", "partition": 0, "cursor": cursor, **parameters}
    return httpx.request(method, f"{url}/book/events", params=parameters)


def test_next_page_is_read_for_who_reads_on(book):
    """Who has asked for a page and the next one finds the one behind them read, and each once."""
    with opened(book) as url:
        cursor = FIRST
        for number in range(LAST_PAGE + 1):
            answer = get(url, cursor)
            assert answer.text.startswith(f'{{"data":{number}}}') == (number < LAST_PAGE)
            cursor = str(number + 1) if number < LAST_PAGE else cursor
            if 0 < number < LAST_PAGE - 1:
                until(lambda expected=number + 1: expected in book.asked)
        assert cursor == str(LAST_PAGE)
    # The last page with an event is not full: it may be another when it is asked for.
    assert sorted(book.asked) == [
        *range(LAST_PAGE - 1),
        LAST_PAGE - 1,
        LAST_PAGE - 1,
        LAST_PAGE,
    ]


def test_nothing_is_read_for_who_does_not_read_on(book):
    """A page alone, or one page again and again, is no reason to read another."""
    with opened(book) as url:
        for _ in range(3):
            assert get(url, "2").status_code == 200
        assert get(url, "5", method="HEAD").status_code == 200
        assert get(url, "6", method="HEAD").status_code == 200
        time.sleep(0.1)
    assert book.asked == [2, 5, 6]


class Volume(Book):
    """A book of many pages that can be read several at once."""

    def __init__(self):
        super().__init__()
        self.at_once = []

    def read_pages(self, partition, cursor, limit, count):
        """Read some pages."""
        first = int(cursor)
        self.at_once.append((first, count))
        if first == self.slow:
            self.turned.wait(PATIENCE)
        return [
            Page([Event(b"%d" % number)], str(number + 1), full=True)
            for number in range(first, first + count)
        ]


def test_several_pages_are_read_at_once():
    """Who reads on finds some pages read in one go, and the next ones while it takes these."""
    book = Volume()
    with opened(book) as url:
        for number in range(1, 20):
            assert get(url, str(number)).text.startswith(f'{{"data":{number}}}')
            behind = PAGES * ((number - 3) // PAGES + 1) if number > 2 else 0
            if number > 1:
                until(lambda start=3 + behind: (start, PAGES) in book.at_once)
    assert book.asked == [1, 2]
    starts = [start for start, _ in book.at_once]
    assert starts == sorted(set(starts))


def test_reading_goes_on_while_its_reader_waits():
    """Who waits for pages that are being read is read for on, before those are made ready."""
    book, ready = Volume(), threading.Event()
    book.slow = 3
    with opened(book) as url, ThreadPoolExecutor(1) as pool:
        for cursor in ("1", "2"):
            get(url, cursor)
        until(lambda: book.at_once == [(3, PAGES)])
        book.vouch = lambda cursors: ready.wait(PATIENCE)
        waiting = pool.submit(get, url, "3")
        time.sleep(4 * VOUCHED)
        book.turned.set()
        until(lambda: book.at_once == [(3, PAGES), (3 + PAGES, PAGES)])
        assert not waiting.done()
        ready.set()
        assert waiting.result(PATIENCE).text.startswith('{"data":3}')
        time.sleep(0.1)
        assert len(book.at_once) == 2


def test_nothing_is_read_ahead_that_would_throw_out_the_rest(book):
    """Pages of which four have no room among what is kept are not read ahead."""
    size = len(b'{"data":1}\n{"cursor":"2"}\n')
    for share in (3.9, 4):
        book.asked.clear()
        with opened(book, capacity=Capacity(kept_bytes=int(share * size))) as url:
            for cursor in ("1", "2"):
                get(url, cursor)
        assert (3 in book.asked) is (share == 4)


def test_nothing_is_read_ahead_while_half_of_the_connections_are_in_use(book):
    """Requests that somebody waits for go before what nobody has asked for."""
    book.slow = 6
    book.turned.clear()
    with opened(book, capacity=Capacity(connections=2)) as url, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(get, url, "6")
        until(lambda: 6 in book.asked)
        for cursor in ("1", "2"):
            get(url, cursor)
        assert book.asked == [6, 1, 2]
        book.turned.set()
        assert slow.result(PATIENCE).status_code == 200


def test_page_that_is_being_read_ahead_is_waited_for(book):
    """Who asks for a page while it is read ahead gets that, and it is not read twice."""
    book.slow = 3
    with opened(book) as url:
        assert [get(url, cursor).status_code for cursor in ("1", "2")] == [200, 200]
        until(lambda: 3 in book.asked)
        turning = threading.Timer(0.2, book.turned.set)
        turning.start()
        assert get(url, "3").text.startswith('{"data":3}')
        turning.join()
    assert book.asked.count(3) == 1


def test_kept_page_is_the_same_page(book):
    """A page that is kept has the bytes, the tag and the headers that it had, without a read."""
    with opened(book) as url:
        first, again = get(url, "2"), get(url, "2")
        assert first.content == again.content
        for name in ("etag", "cache-control", "content-type"):
            assert first.headers[name] == again.headers[name]
        held = {"If-None-Match": first.headers["etag"]}
        parameters = {"token": "1", "partition": 0, "cursor": "2"}
        known = httpx.get(f"{url}/book/events", params=parameters, headers=held)
        assert (known.status_code, known.content) == (304, b"")
        assert get(url, "2", pagesizehint=7).content == first.content
    assert book.asked == [2, 2]


def test_page_that_may_be_another_is_not_kept(book):
    """A page at the head is read each time, and so is the first one, which may be trimmed."""
    with opened(book) as url:
        for cursor in (FIRST, str(LAST_PAGE - 1), str(LAST_PAGE)):
            for _ in range(2):
                assert get(url, cursor).headers["cache-control"] == "no-store"
    assert book.asked == [0, 0, LAST_PAGE - 1, LAST_PAGE - 1, LAST_PAGE, LAST_PAGE]


def test_page_is_kept_for_its_time(book):
    """A page is read again when its time is over."""
    with opened(book, capacity=Capacity(kept_seconds=0.2)) as url:
        get(url, "2")
        time.sleep(0.3)
        get(url, "2")
    assert book.asked == [2, 2]


def test_pages_are_kept_within_their_bytes(book):
    """What there is no room for goes, and first what nobody has asked for the longest."""
    size = len(b'{"data":1}\n{"cursor":"2"}\n')
    with opened(book, capacity=Capacity(kept_bytes=2 * size)) as url:
        for cursor in ("1", "3", "1", "5", "1", "3"):
            get(url, cursor)
    assert book.asked == [1, 3, 5, 3]


def test_page_that_is_larger_than_all_room_is_not_kept(book):
    """A page that does not fit is sent all the same, and read again."""
    with opened(book, capacity=Capacity(kept_bytes=1)) as url:
        assert get(url, "1").content == get(url, "1").content
    assert book.asked == [1, 1]


def test_another_history_keeps_nothing(book):
    """Once a cursor was refused because history is another one, pages are read again."""
    book.gone = 7
    with opened(book) as url:
        get(url, "2")
        assert get(url, "7").status_code == 410
        get(url, "2")
    assert book.asked == [2, 7, 2]


def test_kept_pages_are_of_the_history_that_there_is(book, monkeypatch):
    """Once a feed does not vouch for what is kept, nothing of it is sent any more."""
    monkeypatch.setattr(read_ahead, "VOUCHED", LONG)
    asked = []

    def vouch(cursors):
        asked.append(sorted(cursors))
        if len(asked) == 2:
            raise Diverged("This is another book.")

    book.vouch = vouch
    with opened(book) as url:
        for cursor in ("2", "4", "2"):
            get(url, cursor)
        assert (asked, book.asked) == ([["2", "3"]], [2, 4])
        time.sleep(1.1 * LONG)
        for cursor in ("2", "4"):
            get(url, cursor)
    assert (asked, book.asked) == ([["2", "3"], ["2", "3", "4", "5"], ["2", "3"]], [2, 4, 2, 4])


def test_page_of_another_history_does_not_vouch_for_those_before_it(book):
    """Before a page is kept, those that are kept are looked at: the last one speaks for all."""

    def vouch(cursors):
        if max(cursors) == "3":
            raise Diverged("This is another book.")

    with opened(book) as url:
        get(url, "2")
        book.vouch = vouch
        time.sleep(2 * VOUCHED)
        get(url, "4")
        get(url, "2")
    assert book.asked == [2, 4, 2]


def test_feed_that_cannot_vouch_for_its_pages_keeps_none(book):
    """A feed of one's own that does not say whether its history still holds is always read."""

    class Plain:
        info, read = book.info, book.read

    with opened(Plain()) as url:
        for cursor in ("1", "2", "1", "2"):
            get(url, cursor)
        time.sleep(0.1)
    assert book.asked == [1, 2, 1, 2]


def test_page_that_nobody_can_vouch_for_is_not_sent(book):
    """While a feed cannot say whether a kept page holds, who asks for it is told to come again."""

    def vouch(cursors):
        raise Unavailable("Not now.", retry_after=1)

    book.vouch = vouch
    with opened(book) as url:
        assert [get(url, "2").status_code for _ in range(2)] == [200, 503]


def test_failure_of_what_nobody_asked_for_is_met_by_who_asks(book):
    """A page that cannot be read ahead is a problem of the request for it, and of no other."""
    book.broken = 3
    with opened(book) as url:
        assert [get(url, cursor).status_code for cursor in ("1", "2")] == [200, 200]
        until(lambda: 3 in book.asked)
        assert get(url, "3").status_code == 500
        assert get(url, "2").status_code == 200


def test_reader_who_may_not_see_all_is_not_given_what_others_asked_for(book):
    """A reader of some types gets a page of its own, which nobody keeps."""
    rights = {
        "all": Principal(name="all"),
        "some": Principal(name="some", types=frozenset({"placed"})),
    }

    def authorize(request):
        return rights[request.headers["who"]]

    with opened(book, authorize=authorize) as url:
        address = f"{url}/book/events"
        parameters = {"token": "1", "partition": 0, "cursor": "2", "event-types": "placed"}
        for who in ("all", "some", "some"):
            answer = httpx.get(address, params=parameters, headers={"who": who})
            assert ("etag" in answer.headers) is (who == "all")
    assert book.asked == [2, 2, 2]
