"""Pages that are read before they are asked for, over real HTTP."""

import time

from harness.readers import BOOK_PAGE, Book, get, mounted, read
from harness.waiting import until

from zeroeventhub import Capacity, Event, Page, Principal
from zeroeventhub.errors import Diverged, Unavailable


def until_asked(book, number):
    """Wait until a page has been read."""
    until(lambda: number in book.asked, f"page {number} is read", 5)


def test_next_page_is_read_for_who_reads_on(book):
    """A reader of a page and the next one finds the one behind them read, and each once."""
    with mounted(book) as url:
        for number in range(book.last):
            read(url, number)
            if 0 < number < book.last - 1:
                until_asked(book, number + 1)
        assert get(url, cursor=str(book.last)).status_code == 200
    # The last page with an event is not full: it may be another when it is asked for.
    assert sorted(book.asked) == sorted([*range(book.last + 1), book.last - 1])


def test_nothing_is_read_for_who_does_not_read_on(book):
    """A page alone, one page again and again, or one that is kept is no reason to read another."""
    with mounted(book) as url:
        read(url, 2, 2, 2)
        for cursor in ("5", "6"):
            assert get(url, cursor=cursor, method="HEAD").status_code == 200
        read(url, 1)
        time.sleep(0.1)  # for what would be read by mistake
    assert book.asked == [2, 5, 6, 1]


def test_several_pages_are_read_at_once():
    """A reader that reads on finds some pages read in one go, each of them once."""

    class Volume(Book):
        at_once = []

        def read_pages(self, partition, cursor, limit, count):
            self.at_once.append(range(int(cursor), int(cursor) + count))
            return [Page([Event(b"%d" % n)], str(n + 1), full=True) for n in self.at_once[-1]]

    book = Volume(last=1000)
    with mounted(book) as url:
        read(url, *range(1, 20))
        ahead = [number for pages in book.at_once for number in pages]
        assert len({*ahead, *book.asked}) == len(ahead) + len(book.asked)
        assert {*range(1, 20)} <= {*ahead, *book.asked}
        assert len(book.at_once) + len(book.asked) < 10


def test_nothing_is_read_ahead_that_would_throw_out_the_rest(book):
    """Pages of which four have no room among what is kept are not read ahead."""
    for share in (3.9, 4):
        book.asked.clear()
        with mounted(book, capacity=Capacity(kept_bytes=int(share * BOOK_PAGE))) as url:
            read(url, 1, 2)
            if share == 4:
                until_asked(book, 3)
            time.sleep(0.05)  # for what would be read by mistake
        assert (3 in book.asked) is (share == 4)


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


def test_pages_of_a_lost_history_are_not_sent(book):
    """Once a feed does not vouch for what is kept, nothing of it is sent any more."""
    vouched = []

    def vouch(cursors):
        vouched.append({*cursors})
        if is_lost and "3" in cursors:
            raise Diverged("This is another book.")

    is_lost, book.vouch = False, vouch
    with mounted(book) as url:
        read(url, 2, 4, 2, 4)
        assert book.asked == [2, 4]
        is_lost = True
        until(lambda: read(url, 2) or book.asked == [2, 4, 2], "the page is read again", 5)
        is_lost = False
        read(url, 4)
    assert book.asked == [2, 4, 2, 4]
    assert {"2", "3", "4", "5"} in vouched


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


def test_feed_that_cannot_vouch_for_its_pages_keeps_none(book):
    """A feed of one's own that does not say whether its history still holds is always read."""

    class Plain:
        info, read = book.info, book.read

    with mounted(Plain()) as url:
        read(url, 1, 2, 1, 2)
        time.sleep(0.05)  # for what would be read by mistake
    assert book.asked == [1, 2, 1, 2]


def test_page_that_the_feed_cannot_vouch_for_is_not_sent(book):
    """While a feed cannot say whether a kept page holds, its readers are told to come again."""

    def vouch(cursors):
        raise Unavailable("Not now.", retry_after=1)

    book.vouch = vouch
    with mounted(book) as url:
        assert [get(url, cursor="2").status_code for _ in range(2)] == [200, 503]


def test_failure_of_what_is_read_ahead_is_met_by_who_asks(book):
    """A page that cannot be read ahead is a problem of the request for it, and of no other."""
    book.broken = 3
    with mounted(book) as url:
        read(url, 1, 2)
        until_asked(book, 3)
        assert get(url, cursor="3").status_code == 500
        read(url, 2)
        book.broken = None
        read(url, 3)


def test_reader_of_some_types_is_not_given_what_others_asked_for(book):
    """A reader of some types gets a page of its own, which is kept for nobody."""
    rights = {"all": Principal(name="all"), "some": Principal(name="some", types={"placed"})}

    def authorize(request):
        return rights[request.headers["who"]]

    with mounted(book, authorize=authorize) as url:
        for who in ("all", "some", "some"):
            answer = get(url, cursor="2", headers={"who": who}, **{"event-types": "placed"})
            assert ("etag" in answer.headers) is (who == "all")
    assert book.asked == [2, 2, 2]
