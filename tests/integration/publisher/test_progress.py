"""Consumers that say how far they have come, and what that keeps from being trimmed."""

from contextlib import contextmanager
from datetime import timedelta

import anyio
import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.trimmed import numbers, of_another_event, position_of, trim
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, event, insert, update
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    LAST,
    AsyncClient,
    AsyncConsumer,
    Client,
    Consumer,
    CursorStore,
    Principal,
    TableFeed,
    bearer_tokens,
    feed_routes,
)
from zeroeventhub.archive import Archive
from zeroeventhub.consumer import telling
from zeroeventhub.errors import (
    BadCursor,
    BadRequest,
    ConfigurationError,
    Diverged,
    Forbidden,
    NotFound,
    TokenChanged,
    Trimmed,
)
from zeroeventhub.publisher import reader
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

TOKENS = {name: f"{name}-0123456789abcdef" for name in ("ada", "bob", "half")}
PRINCIPALS = {
    TOKENS["ada"]: Principal(name="ada"),
    TOKENS["bob"]: Principal(name="bob"),
    TOKENS["half"]: Principal(name="half", partitions={1}),
}


def source(**options):
    """Return a feed over orders in two partitions whose consumers may say how far they are."""
    given = {"data": "data", "partition": "part", "partitions": 2, "type": "kind"}
    given |= {"retention": Retention(), "progress": Progress()}
    return TableFeed(orders, **{**given, **options})


def filled(engine):
    """Place twenty orders in a database, the even ones in partition 0."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        source().install(connection)
        source().install(connection)
        place(connection, 20, partitions=2)
    return engine


@pytest.fixture
def shop(engine):
    """An engine of a database with twenty orders, on each database."""
    return filled(engine)


@pytest.fixture
def any_shop(any_engine):
    """The same on a database of any kind."""
    return filled(any_engine)


@contextmanager
def served(engine, **options):
    """Serve the feed; yield its URL."""
    with serving(Starlette(routes=feed_routes("/orders", source(), engine, **options))) as url:
        yield f"{url}/orders"


@contextmanager
def client_of(url, name=None):
    """Open a client, of a principal if there are any."""
    headers = {"Authorization": f"Bearer {TOKENS[name]}"} if name else {}
    with httpx.Client(headers=headers) as http:
        yield Client(url, http)


def heard(feed):
    """The position of each consumer in each partition."""
    return {
        (one.principal, one.consumer, one.partition): position_of(one.cursor)
        for one in feed.registered()
    }


def age(engine, seconds):
    """Let all that was heard have been heard so many seconds earlier."""
    table = Progress().table
    with engine.begin() as connection:
        connection.execute(update(table).values(heard_at=table.c.heard_at - seconds))


def test_trimming_waits_for_consumers_that_have_registered(shop):
    """What a consumer has not committed stays, and the plan says for whom."""
    feed = source().bind(shop)
    plan = feed.plan_trim(below=18)
    assert (plan.until, plan.held_back) == (17, ())
    feed.register_progress("billing", 0, feed.cursor_after(5))
    plan = feed.plan_trim(below=18)
    # Position 7 holds the next event of partition 0.
    assert (plan.until, plan.wanted) == (6, 17)
    assert plan.held_back[0].startswith(
        "Consumer 'billing' keeps what lies above position 6 in partition 0; last heard of 0:00:0"
    )
    feed.register_progress("billing", 1, feed.cursor_after(4))
    assert feed.plan_trim(below=18).until == 5
    feed.register_progress("billing", 1, feed.cursor_after(20))
    feed.register_progress("billing", 0, feed.cursor_after(9))
    assert trim(feed, 18) == 10
    assert numbers(feed, 0, feed.cursor_after(10)) == [*range(10, 20, 2)]
    feed.register_progress("billing", 0, feed.cursor_after(20))
    assert trim(feed, 18) == 7


def test_consumer_that_stands_between_events_of_its_partition_is_waited_for(any_shop):
    """A place that could not be checked once its event is gone keeps that event; the last event of
    a quiet partition need not be kept.
    """
    feed = source().bind(any_shop)
    with any_shop.begin() as connection:
        connection.execute(orders.update().where(orders.c.id > 3).values(part=0))
    between, last = feed.cursor_after(8), feed.cursor_after(2)
    feed.register_progress("billing", 1, between)
    assert feed.plan_trim(below=18).until == 8
    feed.register_progress("billing", 1, last)
    plan = feed.plan_trim(below=18)
    assert plan.until == 17
    feed.trim(plan)
    assert feed.read(1, last, 10).events == []
    feed.register_progress("billing", 1, last)
    assert feed.plan_trim(below=21).until == 20


def test_cursor_at_the_mark_stays_good_until_its_consumer_has_moved_on(shop, monkeypatch):
    """A place at the event of another partition keeps the mark where it is, for it could not be
    checked below; one in a partition that lost nothing keeps nothing.
    """
    feed = source(partitions=3).bind(shop)
    with shop.begin() as connection:
        connection.execute(orders.update().where(orders.c.id > 3).values(part=0))
    between = feed.cursor_after(8)
    feed.register_progress("audit", 2, "1-0")
    feed.register_progress("billing", 1, between)
    assert trim(feed, 18) == 8
    plan = feed.plan_trim(below=18)
    assert (plan.first, plan.until, len(plan.held_back)) == (None, 8, 1)
    assert feed.trim(plan) == 0
    monkeypatch.setattr(reader, "QUIET", 10)
    page = feed.read(1, between, 10)
    assert page.events == []
    feed.register_progress("billing", 1, page.cursor)
    plan = feed.plan_trim(below=18)
    assert (plan.until, plan.held_back) == (17, ())
    feed.trim(plan)
    assert feed.read(1, page.cursor, 10).events == feed.read(2, "1-0", 10).events == []


def test_consumer_that_reads_on_from_an_archive_is_not_waited_for(any_shop, tmp_path):
    """Where what goes is in an archive, no consumer loses it, be it late or silent, and the plan
    has nothing to say; what is not in there stays, whatever is said to be kept elsewhere.
    """
    feed = source(archive=Archive(str(tmp_path))).bind(any_shop)
    feed.seal()
    with any_shop.begin() as connection:
        place(connection, 5, partitions=2)
    cursor = feed.cursor_after(5)
    feed.register_progress("billing", 0, cursor)
    for below in (10, 18):
        plan = feed.plan_trim(below=below)
        assert (plan.until, plan.held_back) == (below - 1, ())
        feed.trim(plan)
        age(any_shop, 30 * 86_400)
    plan = feed.plan_trim(sealed=23)
    assert (plan.until, plan.held_back) == (20, ())
    assert len(feed.read(0, cursor, 99).events) == 10


@pytest.mark.anyio
async def test_async_feed_trims_nothing_that_is_not_in_its_archive(
    any_shop, any_async_engine, tmp_path
):
    """What is said to be kept elsewhere stays in the table, unless the archive has it."""
    feed = source(archive=Archive(str(tmp_path))).bind(any_async_engine)
    await feed.seal()
    with any_shop.begin() as connection:
        place(connection, 5, partitions=2)
    assert (await feed.plan_trim(sealed=23)).until == 20


def test_consumer_that_is_silent_is_not_waited_for(shop):
    """A consumer that is silent for too long, and longer than clocks may be apart, holds nothing
    back, and the plan says so loudly.
    """
    feed = source().bind(shop)
    feed.register_progress("billing", 0, feed.cursor_after(5))
    with pytest.raises(ConfigurationError, match="60 seconds"):
        feed.plan_trim(below=18, silence=timedelta(seconds=59))
    age(shop, 61)
    assert feed.plan_trim(below=18, silence=timedelta(seconds=60)).until == 17
    age(shop, 3 * 86_400 - 61)
    assert feed.plan_trim(below=18).until == 6
    plan = feed.plan_trim(below=18, silence=timedelta(days=2))
    assert plan.until == 17
    assert "Consumer 'billing' WILL LOSE EVENTS in partition 0" in str(plan)
    assert "3 days, 0:00:0" in str(plan)
    feed.trim(plan)
    plan = feed.plan_trim(below=20)
    assert plan.until == 19
    assert "has lost events already" in str(plan)
    assert feed.forget_progress("billing") == 1
    assert feed.plan_trim(below=20).held_back == ()


def test_place_that_is_taken_while_a_plan_is_carried_out_is_waited_for(any_shop):
    """A place that is taken behind the plan is waited for, and one that is trimmed while it is
    taken is refused.
    """
    feed = source().bind(any_shop)
    plan = feed.plan_trim(below=18)
    feed.register_progress("billing", 0, feed.cursor_after(5))
    assert feed.trim(plan) == 6
    feed.forget_progress("billing")
    early, beside = feed.cursor_after(9), create_engine(any_shop.url)
    visits = []

    def trimmed(*_):
        visits.append(1)
        if len(visits) == 2:  # The place has been checked, and is not noted yet.
            source().bind(beside).trim(plan)

    event.listen(any_shop, "checkout", trimmed)
    with pytest.raises(Trimmed):
        feed.register_progress("billing", 0, early)
    beside.dispose()
    assert feed.registered() == []
    assert feed.plan_trim(below=18).first is None


def test_first_place_that_another_process_has_noted_is_moved(postgresql, tmp_path):
    """A process that notes the first place of a consumer moves one that came in between."""
    filled(postgresql)
    feed = source(archive=Archive(str(tmp_path))).bind(postgresql)
    early, late = feed.cursor_after(5), feed.cursor_after(9)
    beside = create_engine(postgresql.url)
    noted = []

    def note(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO zeroeventhub_progress") and not noted:
            noted.append(statement)
            source().bind(beside).register_progress("billing", 0, early)

    event.listen(postgresql, "before_cursor_execute", note)
    feed.register_progress("billing", 0, late)
    beside.dispose()
    assert noted
    assert [one.cursor for one in feed.registered()] == [late]


@pytest.mark.parametrize("first", [0, 1])
def test_all_consumers_are_waited_for(any_shop, first):
    """The one that is furthest behind counts, whoever comes first by name, for a plan and for those
    that register while it is carried out.
    """
    feed = source().bind(any_shop)
    plan = feed.plan_trim(below=19)
    names = ["audit", "billing", "crm"]
    for name, position in zip(names[first:] + names[:first], (6, 16, 11), strict=True):
        feed.register_progress(name, 1, feed.cursor_after(position))
    assert feed.plan_trim(below=19).until == 7
    assert feed.trim(plan, rows=2) == 7
    assert position_of(feed.cursor_after(0)) == 7


def test_clock_that_is_behind_keeps_no_consumer_from_being_waited_for(any_shop):
    """A consumer that registers behind a plan, by a clock that is up to a minute behind, is waited
    for; the plan knows of those that it has not heard of for longer.
    """
    feed = source().bind(any_shop)
    plan = feed.plan_trim(below=18)
    feed.register_progress("billing", 0, feed.cursor_after(5))
    age(any_shop, 55)
    assert feed.trim(plan) == 6
    age(any_shop, 10)
    assert feed.trim(plan) == 11


def test_clock_that_is_ahead_makes_no_consumer_heard_of_in_times_to_come(any_shop):
    """A consumer that was heard of by a clock that is ahead was heard of just now."""
    feed = source().bind(any_shop)
    feed.register_progress("billing", 0, feed.cursor_after(5))
    age(any_shop, -50)
    assert [one.heard for one in feed.registered()] == [0]
    assert feed.plan_trim(below=18, silence=timedelta(seconds=60)).until == 6


def test_what_cannot_be_a_place_is_refused(any_shop):
    """A place is one that the feed has, and a name is a line."""
    feed = source().bind(any_shop)
    early = feed.cursor_after(1)
    good = feed.cursor_after(12)
    for consumer, cursor, error in (
        ("billing", FIRST, BadCursor),
        ("billing", LAST, BadCursor),
        ("billing", "nonsense", BadCursor),
        ("billing", "1-99", Diverged),
        ("billing", of_another_event(good), Diverged),
        ("", good, BadRequest),
        ("x" * 201, good, BadRequest),
        ("two\nlines", good, BadRequest),
    ):
        with pytest.raises(error):
            feed.register_progress(consumer, 0, cursor)
    trim(feed, 5)
    with pytest.raises(Trimmed):
        feed.register_progress("billing", 1, early)
    assert feed.registered() == []
    with pytest.raises(ConfigurationError, match=r"progress=Progress\(\)"):
        source(progress=None).bind(any_shop).register_progress("billing", 0, good)
    with pytest.raises(ConfigurationError, match=r"Progress\(schema=None\)"):
        source(progress=Progress(schema="elsewhere"))


@pytest.mark.anyio
async def test_async_feed_notes_the_same(shop, async_engine):
    """A feed of an async engine is told, tells and forgets as one of a sync engine."""
    feed = source().bind(async_engine)
    cursor = await feed.cursor_after(5)
    await feed.register_progress("billing", 0, cursor, principal="ada")
    await feed.register_progress("billing", 0, cursor, principal="ada")
    (one,) = await feed.registered()
    assert (one.consumer, one.principal, one.partition, one.cursor) == ("billing", "ada", 0, cursor)
    assert one.heard < 60
    assert (await feed.plan_trim(below=18)).until == 6
    assert await feed.forget_progress("billing", principal="bob") == 0
    assert await feed.forget_progress("billing", principal="ada") == 1


# Over HTTP.


def test_client_registers(any_shop):
    """A client says how far its consumer is, and the feed answers with the cursor."""
    feed = source().bind(any_shop)
    with served(any_shop) as url, client_of(url) as client:
        assert "progress" in client.discover().extensions
        client.register_progress("billing", 0, feed.cursor_after(5))
        client.register_progress("Zoë & co", 1, feed.cursor_after(6))
        parameters = {"token": "2", "partition": 0, "cursor": "1-7", "consumer": "billing"}
        answer = httpx.put(f"{url}/progress", params=parameters)
        assert (answer.status_code, answer.json()) == (200, {"cursor": "1-7"})
        assert answer.headers["cache-control"] == "no-store"
        for error, change in (
            (BadCursor, {"cursor": FIRST}),
            (BadRequest, {"consumer": ""}),
            (BadRequest, {"consumer": "x" * 201}),
            (BadRequest, {"partition": 7}),
            (TokenChanged, {"token": "9"}),
            (Diverged, {"cursor": "1-99"}),
        ):
            answer = httpx.put(f"{url}/progress", params={**parameters, **change})
            assert answer.status_code == error.status
            assert answer.json()["type"].rpartition("/")[2] == error.problem
        del parameters["consumer"]
        assert httpx.put(f"{url}/progress", params=parameters).status_code == 400
        assert httpx.get(f"{url}/progress", params=parameters).status_code == 405
    assert heard(feed) == {("", "billing", 0): 7, ("", "Zoë & co", 1): 6}


def test_one_principal_does_not_move_the_consumer_of_another(any_shop):
    """A consumer belongs to the principal that registers it, in partitions that one may read."""
    feed = source().bind(any_shop)
    with served(any_shop, authorize=bearer_tokens(PRINCIPALS)) as url:
        for name, position in (("ada", 5), ("bob", 19)):
            with client_of(url, name) as client:
                client.register_progress("billing", 0, feed.cursor_after(position))
        with client_of(url, "half") as client:
            with pytest.raises(BadRequest):
                client.register_progress("billing", 0, feed.cursor_after(3))
            client.register_progress("billing", 1, feed.cursor_after(20))
        assert httpx.put(f"{url}/progress").status_code == 401
    assert heard(feed) == {
        ("ada", "billing", 0): 5,
        ("bob", "billing", 0): 19,
        ("half", "billing", 1): 20,
    }
    assert "Consumer 'billing' of 'ada' keeps" in str(feed.plan_trim(below=18))


def test_feed_without_the_extension_says_so(any_shop):
    """A feed that keeps no progress does not list it, and answers with 404."""
    routes = feed_routes("/orders", source(progress=None), any_shop)
    with serving(Starlette(routes=routes)) as url, client_of(f"{url}/orders") as client:
        assert "progress" not in client.discover().extensions
        with pytest.raises(ConfigurationError, match="extension progress"):
            client.register_progress("billing", 0, "1-3")
        assert httpx.put(f"{url}/orders/progress").status_code == NotFound.status


# Consumers.


@pytest.fixture
def store(tmp_path):
    """A store of a consumer's own."""
    engine = create_engine(f"sqlite:///{tmp_path}/consumer.db")
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
    yield store
    engine.dispose()


def follow(client, store, **options):
    """Make a consumer that reads to the head."""
    options = {"follow": False, "limit": 4, "register_progress": True, **options}
    return Consumer(client, store, "billing", **options)


@pytest.mark.parametrize("way", ["run", "loop"])
def test_consumer_registers_what_it_has_committed(any_shop, store, way):
    """At its end the publisher knows its cursors; of a consumer that was not asked to, nothing."""
    feed = source().bind(any_shop)
    with served(any_shop) as url, client_of(url) as client:
        _consume(follow(client, store, register_progress=False), store, way)
        assert feed.registered() == []
        _consume(follow(client, store), store, way)
    with store.engine.connect() as connection:
        cursors = store.cursors(connection, "billing")
    assert {one.partition: one.cursor for one in feed.registered()} == cursors
    assert feed.plan_trim(below=21).until == 20


def _consume(consumer, store, way):
    if way == "run":
        consumer.run(lambda _connection, _event: None)
        return
    for page in consumer:
        with store.engine.begin() as connection:
            page.commit(connection)


def test_consumer_registers_while_it_runs(any_shop, store, monkeypatch):
    """A consumer that waits at the head has told how far it is, tells of what comes, and is heard
    of though nothing does.
    """
    monkeypatch.setattr(telling, "INTERVAL", 0.05)
    monkeypatch.setattr(telling, "UNCHANGED", 0.2)
    feed = source().bind(any_shop)
    with served(any_shop) as url, client_of(url) as client:
        consumer = follow(client, store, follow=True)
        with running(consumer):
            until(lambda: set(heard(feed).values()) == {19, 20}, "the publisher hears of the head")
            with any_shop.begin() as connection:
                connection.execute(insert(orders), {"part": 0, "data": {"n": 20}})
            until(lambda: heard(feed).get(("", "billing", 0)) == 21, "it hears of what comes")
            age(any_shop, 3600)
            until(lambda: all(one.heard < 60 for one in feed.registered()), "it hears again")


@contextmanager
def running(consumer):
    """Run a consumer in a thread."""
    with anyio.from_thread.start_blocking_portal() as portal:
        task = portal.start_task_soon(
            anyio.to_thread.run_sync, consumer.run, lambda _connection, _event: None
        )
        try:
            yield
        finally:
            consumer.stop()
            task.result(60)


@pytest.mark.parametrize("is_known", [False, True])
def test_publisher_that_does_not_hear_keeps_no_consumer_from_consuming(
    any_shop, store, caplog, is_known
):
    """Where registering fails or is refused, the consumer goes on, and the log says so once."""

    class Refused(Client):
        def register_progress(self, *given):
            if is_known:
                raise Forbidden("It is not wanted.")
            super().register_progress(*given)

    routes = feed_routes("/orders", source(progress=Progress() if is_known else None), any_shop)
    with serving(Starlette(routes=routes)) as url, httpx.Client() as http:
        _consume(follow(Refused(f"{url}/orders", http), store), store, "run")
    with store.engine.connect() as connection:
        assert len(store.cursors(connection, "billing")) == 2
    assert ("It is not wanted." in caplog.text) is is_known
    assert caplog.text.count("was not told how far this consumer has come") == 1


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["run", "loop"])
async def test_async_consumer_registers(any_shop, tmp_path, way):
    """An async consumer tells what a sync one does."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/async.db")
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(store.create_tables)
    with served(any_shop) as url:
        async with httpx.AsyncClient() as http:
            consumer = AsyncConsumer(
                AsyncClient(url, http), store, "billing", follow=False, register_progress=True
            )
            if way == "run":
                await consumer.run(lambda _connection, _event: None)
            else:
                async for page in consumer:
                    async with engine.begin() as connection:
                        await page.commit(connection)
    await engine.dispose()
    feed = source().bind(any_shop)
    assert set(heard(feed)) == {("", "billing", 0), ("", "billing", 1)}
