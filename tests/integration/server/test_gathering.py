"""Readers side by side with one question: the page is read once for all of them."""

import time

import pytest
from harness.readers import (
    PATIENCE,
    AsyncNumbers,
    Numbers,
    get,
    head_of,
    mounted,
    numbers,
    page_url,
    write,
)
from harness.shop import orders
from harness.stalled import answer, ask, asking
from harness.waiting import until
from sqlalchemy import event

from zeroeventhub import FIRST, Capacity, TableFeed
from zeroeventhub.errors import Unavailable

ONE = Capacity(connections=1, patience=PATIENCE)


class Known(Numbers):
    """A feed that knows by heart what it says of itself, so that only pages are asked for."""

    @property
    def known_info(self):
        return Numbers.info(self)


class AsyncKnown(AsyncNumbers):
    """The same, asynchronous."""

    known_info = Known.known_info


@pytest.mark.parametrize("feed", [Known, AsyncKnown])
def test_one_read_answers_all_who_stand_in_line_with_one_question(feed, pool):
    """A page is read for all who ask for it before it is begun, and not for those who ask later."""
    feed = feed(1)
    with mounted(feed, capacity=ONE) as url:
        with feed.held():
            first = pool.submit(get, url)
            until(lambda: feed.inside == 1, "the first page is being read")
            feed.count = 2
            sent = [pool.submit(get, url) for _ in range(7)]
            time.sleep(0.3)  # for those that could come in beside the first
            assert feed.reads == [FIRST]
        assert numbers(first.result()) == [0]
        assert [numbers(one.result()) for one in sent] == [[0, 1]] * 7
    assert 2 <= len(feed.reads) <= 4


def test_failure_is_everybodys(pool):
    """When a shared read fails all who asked are told, and the next reader reads anew."""
    feed = Known(1)
    with mounted(feed, capacity=ONE) as url:
        with feed.held():
            asked = [pool.submit(get, url) for _ in range(8)]
            until(lambda: feed.inside == 1, "the page is being read")
            feed.error = Unavailable("The feed is away.")
        assert [one.result().status_code for one in asked] == [503] * 8
        feed.error = None
        assert numbers(get(url)) == [0]


def test_other_questions_have_pages_of_their_own(pool):
    """Readers with other cursors or limits are given what they asked for, and nobody else's."""
    feed = Known(9)
    with mounted(feed, capacity=ONE) as url:
        with feed.held():
            asked = {
                (cursor, limit): pool.submit(get, url, cursor=cursor, pagesizehint=limit)
                for cursor in ("0", "3", "6")
                for limit in (1, 2, 3)
            }
            until(lambda: feed.inside == 1, "a page is being read")
        for (cursor, limit), page in asked.items():
            assert numbers(page.result()) == [*range(int(cursor), int(cursor) + limit)]


def test_what_comes_is_read_once_for_all_who_wait(shop, watcher):
    """A page that many wait for is read once for each question, and every reader is given it."""
    pages = []

    @event.listens_for(shop, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        if "orders.data" in statement and "ORDER BY" in statement:
            pages.append(statement)

    # Without room for kept pages the feed reads none ahead, which would count as well.
    alone = Capacity(kept_bytes=1)
    with mounted(TableFeed(orders, data="data"), shop, observer=watcher, capacity=alone) as url:
        head = head_of(url)
        urls = [page_url(url, cursor=head, wait=30, pagesizehint=size) for size in (1, 2)]
        with asking(urls[0], 40) as one, asking(urls[1], 40) as two:
            watcher.until_waiting(80)
            before = len(pages)
            write(shop, 2, first=10)
            found = [[answer(each)[2].count(b'"data"') for each in group] for group in (one, two)]
            assert found == [[1] * 40, [2] * 40]
            # A reader that is counted and does not quite wait yet may read by itself.
            assert 2 <= len(pages) - before <= 8


def test_waiter_that_leaves_while_its_page_is_read_keeps_it_from_nobody(watcher):
    """A page that is being read for many is given to those who stay, whoever goes meanwhile."""
    feed = Numbers()
    with mounted(feed, observer=watcher) as url:
        waiting = []
        for number in range(3):
            waiting.append(ask(page_url(url, wait=30)))
            watcher.until_waiting(number + 1)
        reads = len(feed.reads)
        with feed.held():
            feed.count = 1
            until(lambda: feed.inside == 1, "the page is being read")
            waiting[0].close()
            time.sleep(0.05)
        assert [answer(one)[2].count(b'"data"') for one in waiting[1:]] == [1, 1]
        assert len(feed.reads) == reads + 1
        for one in waiting[1:]:
            one.close()
