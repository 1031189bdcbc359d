"""A consumer from start to end: where it starts, what it reads, outlives, and registers."""

import asyncio
import os
import signal
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from harness.deliveries import NAME, Feed, event, filled, numbers, opened, write, write_page
from harness.nginx_paths import reserved_port
from harness.readers import client_of, mounted
from harness.registered import age, fill, heard, served, source
from harness.shop import metadata, orders
from harness.statements import add
from harness.stores import call
from harness.waiting import DEADLINE, until
from harness.web import serving
from sqlalchemy import Connection, create_engine, select
from sqlalchemy import event as sql_event
from starlette.applications import Starlette

from zeroeventhub import (
    LAST,
    AsyncClient,
    AsyncConsumer,
    Capacity,
    Client,
    ConnectionPool,
    Consumer,
    CursorStore,
    Event,
    Failures,
    Layout,
    Partition,
    TableFeed,
    TypeFilter,
    feed_routes,
)
from zeroeventhub.errors import ConfigurationError, Forbidden
from zeroeventhub.extensions import CAUGHT_UP


def loop(shop, **options):
    """Commit the pages of a loop; return their partitions and numbers."""
    found = []
    with shop.pages(**options) as pages:
        for page in pages:
            with shop.engine.begin() as connection:
                page.commit(connection)
                write(connection, page.events)
            found.append((page.partition, numbers(page.events)))
    return found


@pytest.mark.parametrize("extensions", [(), (CAUGHT_UP,)])
def test_loop_gets_pages_of_all_partitions_in_turn(sync_shop, extensions):
    """Pages of all partitions come in turn, every event once, and the next loop goes on there."""
    filled(sync_shop, 10, 2).feed.extensions = frozenset(extensions)
    assert loop(sync_shop, limit=3) == [*[(0, [0, 2, 4]), (1, [1, 3, 5]), (0, [6, 8]), (1, [7, 9])]]
    sync_shop.feed.place(2, first=10)
    assert loop(sync_shop, partitions=[1]) == [(1, [11])]
    assert loop(sync_shop) == [(0, [10])]


@pytest.mark.parametrize("open_http", [ConnectionPool, httpx.Client])
def test_loop_reads_ahead_where_the_feed_takes_its_time(open_http, sync_shop):
    """The next page is asked for while one is at hand, and comes in its turn."""
    shop = filled(sync_shop, 9, 1)
    shop.feed.on_read = lambda *_: time.sleep(0.02)
    with shop.pages(open_http, limit=3) as pages:
        for page, following in zip(pages, ["3", "6", None], strict=True):
            assert numbers(page.events)[-1] == int(page.cursor) - 1
            if following:
                until(
                    lambda cursor=following: (0, cursor) in shop.feed.asked, "a page is asked for"
                )
            with shop.engine.begin() as connection:
                page.commit(connection)
    assert [cursor for _, cursor in shop.feed.asked] == ["_first", "3", "6"]


def test_page_that_is_not_committed_comes_again_with_a_warning(sync_shop, caplog):
    """A loop that commits no page gets it again after a pause, and the log says why."""
    with filled(sync_shop, 5, 1).pages() as pages:
        found = [numbers(page.events) for _, page in zip(range(3), pages, strict=False)]
    assert found == [[0, 1, 2, 3, 4]] * 3
    warning = "was not committed, and comes again: call page.commit in the transaction"
    assert caplog.text.count(warning) == len(found) - 1


def test_loop_that_is_stopped_ends(sync_shop):
    """A loop ends at its next step when it is stopped, and a stopped consumer stays stopped."""
    filled(sync_shop, 4, 1)
    with client_of(sync_shop.url) as client:
        consumer = sync_shop.consumer(client, follow=True, poll_interval=60)
        for number, _ in enumerate(consumer):
            assert number == 0
            consumer.stop()
        assert list(consumer) == []


def test_stop_wakes_a_loop_at_the_head(sync_shop):
    """A loop that pauses at the head is stopped from another thread."""
    shop, ended = filled(sync_shop, 1, 1), []
    shop.put("1")
    with client_of(shop.url) as client:
        consumer = Consumer(client, shop.store, NAME, poll_interval=60)
        thread = threading.Thread(target=lambda: ended.append(list(consumer)))
        thread.start()
        until(lambda: shop.feed.asked, "the head is looked at")
        consumer.stop()
        thread.join(DEADLINE)
    assert ended == [[]]


def test_layout_that_changes_while_it_is_followed_is_read_on(either_shop):
    """Children follow their parent, heirs go on from its cursor, and every event comes once."""
    shop = filled(either_shop, 4, 2)
    running = shop.start(lease=2)
    shop.until_landed(4)
    feed = shop.feed
    feed.publish(event(4))
    feed.publish(event(5), partition=2)
    feed.logs[3] = [event(1), event(3), event(6)]
    feed.layout[:] = [
        *[Partition(2, starts_after=0), Partition(0, closed=True), Partition(3, cursor_from=(1,))]
    ]
    feed.token = "2"
    shop.until_landed(7)
    running.stop()
    assert sorted(shop.landed()) == list(range(7))
    assert [n for n in shop.landed() if n in (0, 2, 4, 5)] == [0, 2, 4, 5]


def test_partition_that_is_shown_open_again_is_read_on(sync_shop):
    """A partition that was read to its end is read on if the feed no longer calls it closed."""
    shop = filled(sync_shop, 1, 1)
    for closed in (True, False, True):
        shop.feed.layout[:] = [Partition(0, closed=closed)]
        shop.run(write_page)
        shop.feed.publish(event(len(shop.landed())))
    assert shop.landed() == [0, 1, 2]


def test_layout_that_another_user_of_the_client_discovers_is_read_on(sync_shop):
    """A consumer whose client has noticed new children for somebody else reads them as well."""
    shop = filled(sync_shop, 1, 1)
    clients = []

    def shared(*given):
        clients.append(Client(*given))
        return clients[0]

    running = shop.start(client=shared, poll_interval=1)
    shop.until_landed(1)
    shop.feed.layout[:] = [Partition(0, closed=True), Partition(1, starts_after=0)]
    shop.feed.token = "2"
    shop.feed.publish(event(1), partition=1)
    clients[0].discover()
    shop.until_landed(2)
    running.stop()


def test_child_waits_for_its_parent_where_a_reset_comes_in_between(sqlite_url):
    """A reset between the child's lease and its first page has the parent read again first."""
    operator, resets = CursorStore(create_engine(sqlite_url)), []
    with opened(sqlite_url) as shop:
        shop.feed.layout[:] = [Partition(0, closed=True), Partition(1, starts_after=0)]
        shop.feed.publish(event(1), event(2))
        shop.feed.publish(event(11), event(12), partition=1)

        @sql_event.listens_for(shop.engine, "begin")
        def reset_once(_):
            leases = operator.tables.leases
            with operator.engine.begin() as connection:
                owner = connection.scalar(select(leases.c.owner).where(leases.c.partition == 1))
                has_ended = any(one.ended for one in operator.standings(connection, NAME))
                if has_ended and owner is not None and not resets:
                    resets.append(operator.reset(connection, NAME))

        shop.run(write_page, lease=1)
        assert (len(resets), shop.landed()) == (1, [1, 2, 1, 2, 11, 12])
    operator.engine.dispose()


def test_server_that_goes_and_comes_back_is_waited_for(sqlite_url):
    """A consumer outlives the publisher's restart by itself."""
    feed = Feed(2)
    feed.place(4)
    application = Starlette(routes=feed_routes("/orders", feed))
    with opened(sqlite_url) as shop, reserved_port() as port:
        with serving(application, port) as url:
            shop.url = f"{url}/orders"
            running = shop.start()
            shop.until_landed(4)
        until(lambda: shop.observer["waited"], "the feed is missed")
        feed.place(2, first=4)
        with serving(Starlette(routes=application.routes), port):
            shop.until_landed(6)
            running.stop()
        assert sorted(shop.landed()) == list(range(6))


def test_consumer_reads_the_types_that_it_names(shop, sqlite_url):
    """Only events of the types asked for take effect, and the cursor moves over the others."""
    publisher = create_engine(f"{sqlite_url}.publisher")
    metadata.create_all(publisher)
    table = TableFeed(orders, data="data", type="kind")
    kinds = ["placed", "paid", "placed", "Paid", "placed"]
    add(publisher, orders, [{"data": {"n": n}, "kind": kind} for n, kind in enumerate(kinds)])
    with mounted(table, publisher) as shop.url, client_of(shop.url) as client:
        shop.run(write_page, types=TypeFilter({"PAID"}))
        assert shop.cursor() == client.fetch(0, LAST).cursor
    assert shop.landed() == [1, 3]
    publisher.dispose()


@pytest.mark.slow
def test_everything_takes_effect_once_at_last(either_shop):
    """With models, lanes, an inbox and dead letters, each key's events take effect in order."""
    events, keys, poison = 40, 5, {7, 8}
    shop = filled(either_shop, events, 2)

    def apply(connection: Connection, one: Event) -> None:
        """Write the event, but not all of them."""
        write(connection, [one])
        if one.data["n"] in poison:
            raise ZeroDivisionError

    options = {
        "limit": 13,
        "lanes": 3,
        "key": lambda one: str(one.data["n"] % keys),
        "identity": lambda one: str(one.data["n"]),
        "inbox": True,
        "failures": Failures(tries=1, then="set-aside", hold_back=True),
    }
    shop.run(apply, **options)
    assert {n for n, state, _ in shop.letters() if state == "failed"} == poison
    behind = {n for n in range(events) if n % keys in {2, 3}}
    assert poison < {n for n, *_ in shop.letters()} <= behind
    poison.clear()
    shop.retry()
    shop.run(apply, **options)
    assert (sorted(shop.landed()), shop.letters()) == (list(range(events)), [])
    for number in range(2 * keys):
        mine = [n for n in shop.landed() if n % (2 * keys) == number]
        assert mine == sorted(mine)


# What is refused.


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: Client("http://x", httpx.AsyncClient()), "httpx.Client"),
        (lambda _: AsyncClient("http://x", httpx.Client()), "httpx.AsyncClient"),
        (lambda it: Consumer(AsyncClient("http://x", httpx.AsyncClient()), it, "b"), "Client"),
        (lambda it: AsyncConsumer(Client("http://x", httpx.Client()), it, "b"), "AsyncClient"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_given(sync_shop, make, reason):
    """Constructors say what they take, before anything is asked of a feed."""
    with pytest.raises(ConfigurationError, match=reason):
        make(sync_shop.store)


# Stopping.


def once(number):
    """Make a function that applies pages and at the first one sends this process a signal.

    The main thread sees it a little later, and another page may be applied by then.
    """
    sent = []

    def apply(connection, page):
        write_page(connection, page)
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    return apply


@pytest.fixture(autouse=True)
def _usual_handlers():
    """Begin with the handlers of a new process: Spark, for one, leaves its own in this one."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def handled():
    """The signals that a handler of the host has seen."""
    seen = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: seen.append(number))
    return seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("has_host", [False, True])
def test_signal_ends_a_run_after_its_page(request, either_shop, number, has_host):
    """The first signal stops a run; its host's handler sees it as well, and stays in place."""
    shop, handled = either_shop, request.getfixturevalue("handled") if has_host else []
    shop.feed.place(6)
    before = signal.getsignal(number)
    shop.run(once(number), follow=True, limit=1, handle_signals=True)
    assert (handled, signal.getsignal(number)) == ([number] * has_host, before)
    assert 1 <= shop.count() < 6
    assert (shop.landed(), shop.leases()) == ([*range(shop.count())], 0)


def test_signal_does_not_wait_for_the_feed_at_its_head(sync_shop):
    """A program of threads that is to end does so while the feed holds a request at its head."""
    shop, answer = filled(sync_shop, 2, 1), threading.Event()
    held = []

    def hang(_, page):
        if not page.events and not held:
            held.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)
            answer.wait(DEADLINE)

    shop.feed.wait()
    shop.feed.on_read = hang
    shop.run(write_page, follow=True, handle_signals=True)
    # Before the client gives the feed up by itself.
    assert time.monotonic() - held[0] < 8
    answer.set()
    assert (shop.landed(), shop.leases()) == ([0, 1], 0)


def test_signals_are_left_to_the_host(shop, handled):
    """A run that handles signals puts handlers back; one that was not asked to goes on."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    shop.run(write_page, handle_signals=True)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    shop.feed.place(3)
    shop.run(once(signal.SIGTERM), limit=1)
    assert (handled, shop.landed()) == ([signal.SIGTERM], [0, 1, 2])


def test_one_signal_ends_runs_that_overlap(sqlite_url, tmp_path, handled):
    """Two runs in one event loop are both stopped, whichever began or ends first."""
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with opened(sqlite_url, is_async=True) as one, opened(other, is_async=True) as two:

        async def run():
            async with httpx.AsyncClient() as http:
                runs = [
                    shop.consumer(AsyncClient(shop.url, http), follow=True).run(
                        write_page, handle_signals=True
                    )
                    for shop in (one, two)
                ]
                ended = asyncio.gather(*runs)
                await asyncio.sleep(0)
                one.feed.place(1)
                two.feed.place(1)
                await asyncio.to_thread(until, lambda: one.count() + two.count() == 2, "both read")
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait_for(ended, 20)

        asyncio.run(run())
    assert handled == [signal.SIGTERM]


def test_only_the_main_thread_handles_signals(shop):
    """A run in another thread says where signals can be handled, instead of ignoring them."""
    running = shop.start(handle_signals=True)
    until(lambda: running.error is not None, "the run has ended")
    assert isinstance(running.error, ConfigurationError)
    assert "main thread" in str(running.error)


@pytest.fixture
def any_shop(any_engine):
    """An engine of a database with twenty orders."""
    metadata.create_all(any_engine)
    fill(any_engine)
    return any_engine


@pytest.fixture
def any_feed(any_shop):
    """The feed over it."""
    return source().bind(any_shop)


@contextmanager
def consuming(engine, folder, *, is_async=False):
    """Serve the feed; yield the shop of a consumer of it."""
    url = f"sqlite:///{folder}/consumer.db"
    capacity = Capacity(wait_seconds=0.2)  # a consumer that is told to stop waits so long
    with opened(url, is_async=is_async) as shop, served(engine, capacity=capacity) as shop.url:
        yield shop


def do_nothing(_connection, _event):
    """Apply an event to nothing."""


@pytest.mark.parametrize("way", ["run", "async run", "loop"])
def test_consumer_registers_what_it_has_committed(any_shop, any_feed, tmp_path, way):
    """At its end the publisher knows its cursors; of a consumer that was not asked to, nothing."""
    with consuming(any_shop, tmp_path, is_async=way == "async run") as shop:
        for registers in (False, True):
            assert any_feed.registered() == []
            options = {"limit": 4, "register_progress": registers}
            if way == "loop":
                with shop.pages(**options) as pages:
                    for page in pages:
                        with shop.engine.begin() as connection:
                            page.commit(connection)
            else:
                shop.run(do_nothing, **options)
        cursors = call(shop.store, shop.store.cursors)
    assert {one.partition: one.cursor for one in any_feed.registered()} == cursors
    assert any_feed.plan_trim(below=21).until == 20


@pytest.mark.slow
def test_consumer_registers_while_it_runs(any_shop, any_feed, tmp_path, monkeypatch):
    """A consumer at the head registers its progress, and again while no event comes, also after an
    error that is none of this library's.
    """
    stumbled = []

    class Stumbling(Client):
        def register_progress(self, *given):
            if not stumbled:
                stumbled.append(given)
                raise RuntimeError
            super().register_progress(*given)

    monkeypatch.setattr("zeroeventhub.consumer.consumer.REPORT_INTERVAL", 0.05)
    monkeypatch.setattr("zeroeventhub.consumer.consumer.UNCHANGED", 0.2)
    with consuming(any_shop, tmp_path) as shop:
        running = shop.start(do_nothing, register_progress=True, client=Stumbling)
        until(lambda: {*heard(any_feed).values()} == {19, 20}, "it is heard of at the head")
        add(any_shop, orders, {"part": 0, "data": {"n": 20}})
        until(lambda: heard(any_feed).get(("", "billing", 0)) == 21, "it tells of what comes")
        age(any_shop, 3600)
        until(lambda: all(one.heard < 60 for one in any_feed.registered()), "it tells again")
        running.stop()


def test_partition_that_the_feed_has_dropped_keeps_no_other_from_registering(
    any_shop, any_feed, tmp_path, caplog
):
    """Its cursor is refused, which the log says; the cursors of other partitions arrive."""
    with consuming(any_shop, tmp_path) as shop:
        shop.run(do_nothing)
        dropped = source(partitions=Layout.of(2).split(0, into=2).drop(0))
        with served(any_shop, dropped) as shop.url:
            shop.run(do_nothing, register_progress=True)
        assert heard(any_feed)["", "billing", 1] == 20
    assert caplog.text.count("no such partition") == 1


def test_publisher_that_does_not_hear_keeps_no_consumer_from_consuming(any_shop, tmp_path, caplog):
    """Where registering is refused, the consumer goes on, and its log says so once."""

    class Refused(Client):
        def register_progress(self, *given):
            raise Forbidden("It is not wanted.")

    with consuming(any_shop, tmp_path) as shop:
        shop.run(do_nothing, register_progress=True, client=Refused)
        assert len(call(shop.store, shop.store.cursors)) == 2
    assert "It is not wanted." in caplog.text
    assert caplog.text.count("progress was not reported to the publisher") == 1
