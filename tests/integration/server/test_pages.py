"""Which pages never change, which caches keep them, and which are read ahead."""

import http.client
import threading
import time
import tracemalloc
from contextlib import closing
from dataclasses import replace
from itertools import product

import httpx
import pytest
from harness import readers
from harness.readers import BOOK_PAGE, Book, cursor_of, mounted, numbers, page_url, read
from harness.shop import fill, orders, write
from harness.waiting import until

from zeroeventhub import FIRST, LAST, Capacity, Event, ExtendedFeed, Page, Principal, TableFeed
from zeroeventhub.errors import Diverged, FeedFailure, Unavailable
from zeroeventhub.server import pages

KEPT = "max-age=31536000, immutable"


@pytest.fixture
def feed_url(shop):
    """The URL of a feed over the orders."""
    with mounted(TableFeed(orders, data="data", type="kind"), shop) as url:
        yield url


def get(url, **parameters):
    """Ask for a page after a cursor that the feed has given."""
    return readers.get(url, **{"cursor": "1-0", **parameters})


def assert_is_fresh(answer):
    """Show that an answer is not to be kept."""
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers


def test_page_has_so_many_events(sqlite):
    """A page has at most a thousand events, or what the capacity says, and at least one."""
    fill(sqlite, 1001)
    feed = TableFeed(orders, data="data")
    with mounted(feed, sqlite) as url:
        assert len(numbers(get(url))) == 1000
    with mounted(feed, sqlite, capacity=Capacity(page_bytes=1)) as url:
        page = get(url)
        assert (numbers(page), numbers(get(url, cursor=cursor_of(page)))) == ([0], [1])
    with mounted(feed, sqlite, capacity=Capacity(page_events=2)) as url:
        for asked in ({}, {"pagesizehint": 4}, {"pagesizehint": "9" * 50}):
            assert numbers(get(url, **asked)) == [0, 1]
        assert numbers(get(url, pagesizehint=0)) == [0]
        v1 = httpx.get(url, params={"n": 1, "cursor0": FIRST, "pagesizehint": 5})
        assert v1.text.count('"data"') == 2


def test_full_page_is_kept_for_ever(feed_url, shop):
    """A page that ends for its size is immutable, and a client that has it gets 304."""
    first = get(feed_url, pagesizehint=4)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == f"private, {KEPT}"
    write(shop, 5, first=10)
    assert get(feed_url, pagesizehint=5).headers["etag"] != tag
    held = [f'"other",W/{tag}', tag, "*", [("If-None-Match", '"other"'), ("If-None-Match", tag)]]
    for named, method in product(held, ("GET", "HEAD")):
        headers = {"If-None-Match": named} if isinstance(named, str) else named
        answer = get(feed_url, method=method, pagesizehint=4, headers=headers)
        assert (answer.status_code, answer.content) == (304, b""), headers
        assert answer.headers["etag"] == tag
        assert answer.headers["cache-control"] == f"private, {KEPT}"
    for other in ('"other"', 'W/"other"', ",", "no tag", tag[:-1]):
        again = get(feed_url, pagesizehint=4, headers={"If-None-Match": other})
        assert (again.content, again.headers["etag"]) == (first.content, tag), other


def test_what_is_true_only_now_is_not_kept(feed_url, shop):
    """Pages at the head, from `_first`, of mutable rows and without events are fresh."""
    last = cursor_of(get(feed_url))
    stop = cursor_of(get(feed_url, pagesizehint=6))
    assert get(feed_url, pagesizehint=5, stop=stop).headers["cache-control"] == f"private, {KEPT}"
    wildcard = {"If-None-Match": "*"}
    for parameters in [
        {},
        {"pagesizehint": 10},
        {"cursor": last},
        {"cursor": FIRST, "pagesizehint": 4},
        {"cursor": LAST},
        {"stop": last},
        {"stop": stop, "pagesizehint": 6},
        {"event-types": "lost", "pagesizehint": 1},
        {"cursor": last, "wait": "0.05"},
    ]:
        answer = get(feed_url, headers=wildcard, **parameters)
        assert answer.status_code == 200, parameters
        assert_is_fresh(answer)
    for problem in [{"cursor": "nonsense"}, {"token": "2"}, {"cursor": "1-99"}]:
        answer = get(feed_url, headers=wildcard, **problem)
        assert answer.status_code in {400, 409, 410}
        assert_is_fresh(answer)
    for path, parameters in [
        ("", {}),
        ("", {"n": 1, "cursor0": "1-0", "pagesizehint": 4}),
        ("/lag", {"token": "1", "partition": 0, "cursor": "1-0"}),
    ]:
        answer = httpx.get(feed_url + path, params=parameters, headers=wildcard)
        assert answer.status_code == 200
        assert_is_fresh(answer)
    with mounted(TableFeed(orders, data="data", mutable=True), shop) as url:
        assert_is_fresh(get(url, pagesizehint=4))


# Pages that the publisher keeps for the next who ask for them.


def test_kept_page_answers_its_own_question(book, monkeypatch):
    """A kept page answers its own question and no other; pages of chosen types are not kept."""
    monkeypatch.setattr(pages, "READING_ON", 0.0)
    with mounted(book) as url:
        first, again = get(url, cursor="2"), get(url, cursor="2")
        assert first.content == again.content
        for name in ("etag", "cache-control", "content-type"):
            assert first.headers[name] == again.headers[name]
        held = get(url, cursor="2", headers={"If-None-Match": first.headers["etag"]})
        assert (held.status_code, held.content) == (304, b"")
        assert book.asked == [2]
        for asked in ({"pagesizehint": 3}, {"event-types": "a"}, {"event-types": "b"}) * 2:
            assert get(url, cursor="2", **asked).status_code == 200
    assert book.asked == [2] * 6


def test_page_that_may_be_another_is_read_each_time(book):
    """A publisher reads a page at the head each time, and the first one, which may be trimmed."""
    pages = [FIRST, str(book.last - 1), str(book.last)]
    with mounted(book) as url:
        for cursor in pages * 2:
            assert_is_fresh(get(url, cursor=cursor))
    assert book.asked == [0, book.last - 1, book.last] * 2


def test_method_that_only_the_port_has_vouches_for_nothing():
    """A publisher keeps no page of a feed that inherits from the port and does not vouch itself."""

    class Novel(ExtendedFeed):
        __init__, info, read = Book.__init__, Book.info, Book.read

    novel = Novel()
    with mounted(novel) as url:
        read(url, 2, 2, 3)
    assert novel.asked == [2, 2, 3]


def test_pages_are_kept_within_their_bytes(book):
    """A full cache drops the pages that were not requested for the longest time."""
    with mounted(book, capacity=Capacity(kept_bytes=2 * BOOK_PAGE)) as url:
        read(url, 1, 3, 1, 5, 1, 3)
    assert book.asked == [1, 3, 5, 3]
    book.asked.clear()
    with mounted(book, capacity=Capacity(kept_bytes=BOOK_PAGE // 2)) as url:
        read(url, 1, 1)
    assert book.asked == [1, 1]


@pytest.mark.slow
def test_kept_pages_are_few_however_small_they_are():
    """A publisher keeps some hundred pages of a reader of tiny pages, and no more."""
    book, vouched = Book(last=1_000), []
    book.vouch = lambda cursors: vouched.append(len(cursors))
    with (
        mounted(book) as url,
        closing(http.client.HTTPConnection(httpx.URL(url).netloc.decode())) as asking,
    ):
        tracemalloc.start()
        for number in range(1, 800):
            asking.request("GET", page_url("/orders", cursor=number))
            asking.getresponse().read()
            if number == 300:
                before = tracemalloc.get_traced_memory()[0]
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert 2 <= max(vouched) < 600
    assert grown < 200_000


def test_page_that_many_ask_for_takes_its_room_once(book, pool):
    """A page that several readers requested takes its room in the cache once."""
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
            until(lambda: read(url, 1, 4) or {1, 4} <= {*book.asked}, "both are read again")

        def are_kept():
            read(url, 1, 4)
            book.asked.clear()
            read(url, 1, 4)
            return book.asked == []

        until(are_kept, "both are kept")


def test_kept_page_is_sent_for_its_time_and_vouched_for_meanwhile(book, monkeypatch):
    """A page is kept for as long as the capacity says, and the feed vouches for it all the time."""
    now, vouched = 1000.0, []
    monkeypatch.setattr(pages, "monotonic", lambda: now)
    book.vouch = vouched.append
    with mounted(book, capacity=Capacity(kept_seconds=60)) as url:
        read(url, 1)
        expected = (0.01, 1, 1), (0.02, 1, 1), (0.2, 1, 2), (59, 1, 3), (61, 2, 3)
        for seconds, reads, vouches in expected:
            now = 1000 + seconds
            read(url, 1)
            assert (len(book.asked), len(vouched)) == (reads, vouches), seconds


def test_another_history_keeps_nothing(book):
    """Once a cursor is of another history pages are read again, and kept in as much room."""
    book.gone = 7
    with mounted(book, capacity=Capacity(kept_bytes=2 * BOOK_PAGE)) as url:
        for _ in range(3):
            read(url, 2, 4, 2, 4)
            assert get(url, cursor="7").status_code == 410
    assert book.asked == [2, 4, 7] * 3


def test_pages_of_a_lost_history_are_not_sent(book):
    """Once a feed does not vouch for what is kept, nothing of it is sent any more."""

    def vouch(cursors):
        if is_lost and "3" in cursors:
            raise Diverged("This is another book.")

    is_lost, book.vouch = False, vouch
    with mounted(book) as url:
        read(url, 2, 4, 2, 4)
        assert book.asked == [2, 4]
        is_lost = True
        until(lambda: read(url, 2) or book.asked == [2, 4, 2], "the page is read again")
        is_lost = False
        read(url, 4)
    assert book.asked == [2, 4, 2, 4]


def test_pages_of_a_lost_history_are_not_sent_to_requests_that_wait_for_a_check(book, pool):
    """Of several requests whose pages one check refuses, none is sent a page that was kept."""
    checks, go_on = [], threading.Event()

    def vouch(cursors):
        checks.append(cursors)
        assert go_on.wait(readers.PATIENCE)
        if len(checks) == 1:
            raise Diverged("This is another book.")

    with mounted(book) as url:
        read(url, 2, 4)
        time.sleep(0.1)  # until it is time to vouch again
        book.vouch = vouch
        asking = [pool.submit(read, url, 2)]
        until(lambda: checks, "the check has begun")
        asking.append(pool.submit(read, url, 4))
        time.sleep(0.1)  # until the second request waits as well
        go_on.set()
        for one in asking:
            one.result()
    assert sorted(book.asked) == [2, 2, 4, 4]


def test_page_that_is_dropped_while_the_feed_is_asked_is_read_again(book, pool):
    """A request whose page expires while the feed does not answer gets no page of before."""
    checks, go_on = [], threading.Event()

    def vouch(cursors):
        checks.append(cursors)
        assert go_on.wait(readers.PATIENCE)
        raise Unavailable("The feed does not answer.")

    with mounted(book, capacity=Capacity(kept_seconds=0.4)) as url:
        read(url, 2)
        time.sleep(0.1)  # until it is time to vouch again
        book.vouch = vouch
        asking = [pool.submit(readers.get, url, cursor="2")]
        until(lambda: checks, "the feed is asked")
        asking.append(pool.submit(readers.get, url, cursor="2"))
        time.sleep(0.4)  # until the page has expired, and the second request waits
        with book.holding(2):
            asking.append(pool.submit(readers.get, url, cursor="2"))
            until(lambda: len(book.asked) == 2, "the page is read again, as it was dropped")
            go_on.set()
            until(lambda: len(book.asked) == 3, "the second request reads it as well")
    assert [one.result().status_code for one in asking] == [503, 200, 200]


def test_page_of_another_history_does_not_vouch_for_those_before_it(book):
    """Before a page is kept, those that are kept are looked at: the last one speaks for all."""

    def vouch(cursors):
        if max(cursors) == "3":
            raise Diverged("This is another book.")

    with mounted(book) as url:
        read(url, 2)
        book.vouch = vouch
        time.sleep(0.2)  # until it is time to vouch again
        read(url, 4, 2)
    assert book.asked == [2, 4, 2]


def test_page_that_the_feed_cannot_vouch_for_is_not_sent(book):
    """A feed that cannot vouch for a page now answers 503; one that never can is always read."""

    class Plain:
        info, read = book.info, book.read

    with mounted(Plain()) as url:
        read(url, 1, 2, 1, 2)
    assert book.asked == [1, 2, 1, 2]

    def vouch(cursors):
        raise Unavailable("Not now.", retry_after=1)

    book.vouch = vouch
    with mounted(book) as url:
        assert [get(url, cursor="2").status_code for _ in range(2)] == [200, 503]


def test_reader_of_some_types_is_not_given_what_others_asked_for(book):
    """A reader of some types gets a page of its own, which the cache does not keep."""
    rights = {"all": Principal(name="all"), "some": Principal(name="some", types={"placed"})}

    def authorize(request):
        return rights[request.headers["who"]]

    with mounted(book, authorize=authorize) as url:
        for who in ("all", "some", "some"):
            answer = get(url, cursor="2", headers={"who": who}, **{"event-types": "placed"})
            assert ("etag" in answer.headers) is (who == "all")
    assert book.asked == [2, 2, 2]


# Pages that are read before they are asked for.


def until_asked(book, number):
    """Wait until a page has been read."""
    until(lambda: number in book.asked, f"page {number} is read")


def test_next_page_is_read_for_a_reader_that_reads_on(book):
    """A reader of a page and the next one finds the one after them read, and each once."""
    with mounted(book) as url:
        for number in range(book.last):
            read(url, number)
            if 0 < number < book.last - 1:
                until_asked(book, number + 1)
        assert get(url, cursor=str(book.last)).status_code == 200
    # The last page with an event is not full: it may be another when it is asked for.
    assert sorted(book.asked) == sorted([*range(book.last + 1), book.last - 1])


class Volume(Book):
    """A book whose pages can be read several at once; `at_once` tells which were."""

    def __init__(self, **options):
        super().__init__(**options)
        self.at_once = []

    def read_pages(self, partition, cursor, limit, count, *, on_page):
        """Return so many pages."""
        self.at_once.append(range(int(cursor), int(cursor) + count))
        return [Page([Event(b"%d" % n)], str(n + 1), full=True) for n in self.at_once[-1]]


def test_several_pages_are_read_at_once():
    """A reader that reads on finds some pages read in one go, each of them once."""
    book = Volume(last=1000)
    with mounted(book) as url:
        read(url, *range(1, 20))
        ahead = [number for pages in book.at_once for number in pages]
        assert len({*ahead, *book.asked}) == len(ahead) + len(book.asked)
        assert {*range(1, 20)} <= {*ahead, *book.asked}
        assert len(book.at_once) + len(book.asked) < 10


class Serial(Volume):
    """A book whose pages are read one after the other, and handed over as soon as they are there.

    `handed_over` is called with the number of each page, before the next one is read.
    """

    def __init__(self, handed_over, **options):
        super().__init__(**options)
        self.handed_over = handed_over

    def read_pages(self, partition, cursor, limit, count, *, on_page):
        """Return so many pages, and hand over each of them before."""
        pages = super().read_pages(partition, cursor, limit, count, on_page=on_page)
        for page in pages:
            on_page(page)
            self.handed_over(int(page.cursor) - 1)
        return pages


def test_page_is_sent_while_those_after_it_are_read():
    """A reader gets a page that was read ahead before all of the next ones are there."""
    numbers, seconds = [], 0.05

    def handed_over(number):
        numbers.append(number)
        time.sleep(seconds if number > 5 else 0)

    book = Serial(handed_over, last=1000)
    with mounted(book) as url:
        read(url, *range(1, 7))
        seconds = 0
        assert numbers[-1] < 20
        read(url, *range(7, 40))
    assert book.asked == [1]


def test_page_that_arrives_late_does_not_vouch_for_those_before_it():
    """Before a page that is read ahead is kept, those that are kept are looked at."""
    checks, done, numbers = [], [], []

    def handed_over(number):
        numbers.append(number)
        if number == 6:
            time.sleep(0.1)  # until it is time to vouch again
            done.append(len(checks))

    book = Serial(handed_over, last=1000)
    with mounted(book) as url:
        read(url, 1, 2, 3)
        book.vouch = lambda cursors: checks.append(max(map(int, cursors)))
        read(url, 4)
        until(lambda: 37 in numbers, "the pages are read")
        read(url, 1)
    assert checks[done[0]] in {6, 7}


def test_requests_that_wait_for_one_page_have_the_feed_vouch_as_often_as_one(pool, monkeypatch):
    """While many requests wait for a page, only one of them sees to it that the feed vouches."""
    numbers, times, go_on = [], [], threading.Event()

    def handed_over(number):
        numbers.append(number)
        assert number != 7 or go_on.wait(readers.PATIENCE)

    async def vouch(cache):
        times.append(cache)
        return True

    book = Serial(handed_over, last=1000)
    with mounted(book) as url:
        read(url, 1, 2, 3, 4)
        until(lambda: 7 in numbers, "pages are being read")
        read(url, 5, 6, 7)
        monkeypatch.setattr(pages.PageCache, "_vouch", vouch)
        asking = [pool.submit(read, url, 8) for _ in range(8)]
        time.sleep(0.5)
        count = len(times)
        go_on.set()
        for one in asking:
            one.result()
    assert 0 < count < 2 * 0.5 / (pages.VOUCHED / 2)


def test_page_that_is_told_before_an_error_lets_no_request_wait():
    """After a read ahead has failed, no request waits for a page of it."""

    class Failing(Volume):
        async def read_pages(self, partition, cursor, limit, count, *, on_page):
            """Tell of a page, and fail."""
            on_page(Page([Event(cursor.encode())], str(int(cursor) + 1), full=True))
            raise FeedFailure("The other pages cannot be read.")

    book = Failing(last=1000)
    with mounted(book) as url:
        read(url, *range(1, 9))


def test_pages_that_are_read_while_the_history_changes_are_not_kept():
    """Once the feed does not vouch for what is kept, what was being read is not kept either."""
    numbers, go_on = [], threading.Event()

    def told(number):
        numbers.append(number)
        assert number != 7 or go_on.wait(readers.PATIENCE)

    def refuse(_cursors):
        book.vouch = lambda _cursors: None
        raise Diverged("This is another book.")

    book = Serial(told, last=1000)
    with mounted(book) as url:
        read(url, 1, 2, 3, 4)
        until(lambda: 7 in numbers, "pages are being read")
        time.sleep(0.1)  # until it is time to vouch again
        book.vouch = refuse
        read(url, 3, 500)
        go_on.set()
        until(lambda: 37 in numbers, "the pages are read")
        read(url, 20)
    assert 20 in book.asked


@pytest.mark.parametrize("capacity", [Capacity(kept_bytes=100_000), Capacity(kept_seconds=1e-6)])
def test_no_pages_are_read_ahead_of_a_reader_that_has_stopped(capacity):
    """A feed whose pages are dropped unsent is not read to its end for a reader that stopped."""

    class Growing(Volume):
        def read_pages(self, *arguments, on_page):
            """Return pages, of which the later ones are long."""
            found = super().read_pages(*arguments, on_page=on_page)
            return found[:5] + [replace(one, events=[Event(b"1" * 10_000)]) for one in found[5:]]

    book = Growing(last=1000)
    with mounted(book, capacity=capacity) as url:
        read(url, 1, 2, 3, 4)
        time.sleep(0.5)
    assert len(book.at_once) < 20


def test_pages_that_wait_for_their_readers_are_kept_longer_than_those_that_were_sent():
    """Readers side by side, whose pages fill the cache, have few pages read in vain."""
    readers_beside, length, counts = 4, 25, []
    for _ in range(3):  # on a busy machine, a batch may be late
        book = Volume(last=1000)
        with mounted(book, capacity=Capacity(kept_bytes=24 * BOOK_PAGE)) as url:
            for number in range(length):
                read(url, *range(number, 1000, 1000 // readers_beside))
        counts.append(len(book.asked) + sum(map(len, book.at_once)))
        assert len(book.asked) <= 2 * readers_beside
    # In vain are those at the start, when no reader is known to read on, and the last ones.
    assert min(counts) < 1.9 * readers_beside * length


def test_nothing_is_read_for_a_reader_that_does_not_read_on(book):
    """A page alone, one page again and again, or one that is kept is no reason to read another."""
    with mounted(book) as url:
        read(url, 2, 2, 2)
        for cursor in ("5", "6"):
            assert get(url, cursor=cursor, method="HEAD").status_code == 200
        read(url, 1)
        time.sleep(0.1)  # for what would be read by mistake
    assert book.asked == [2, 5, 6, 1]


def test_nothing_is_read_ahead_while_half_of_the_connections_are_in_use(book, pool):
    """Requests that a reader waits for go before what was not asked for."""
    with mounted(book, capacity=Capacity(connections=2)) as url, book.holding(6):
        slow = pool.submit(read, url, 6)
        until_asked(book, 6)
        read(url, 1, 2)
        time.sleep(0.05)  # for what would be read by mistake
        assert book.asked == [6, 1, 2]
    slow.result()


def test_page_under_way_is_read_once(book, pool):
    """A page that is being read ahead is waited for by its readers, and read ahead only once."""
    with mounted(book) as url:
        with book.holding(3):
            read(url, 1, 2)
            until_asked(book, 3)
            read(url, 1, 2)
            asking = [pool.submit(read, url, 3) for _ in range(3)]
            time.sleep(0.1)  # for those that would read it by mistake
            assert not any(one.done() for one in asking)
        for one in asking:
            one.result()
    assert book.asked.count(3) == 1


def test_failure_of_what_is_read_ahead_is_met_by_the_reader_that_asks(book):
    """A page that cannot be read ahead is a problem of the request for it, and of no other."""
    book.broken = 3
    with mounted(book) as url:
        read(url, 1, 2)
        until_asked(book, 3)
        assert get(url, cursor="3").status_code == 500
        read(url, 2)
        book.broken = None
        read(url, 1, 2)
        until(lambda: book.asked.count(3) == 3, "it is read ahead again")
        read(url, 3)
